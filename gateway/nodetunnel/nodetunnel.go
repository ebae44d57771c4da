// Package nodetunnel prepares a node for Services with direct return: the end of the gateways'
// tunnel. The node needs no agent of Sluice, only
//
//	device     of type VXLAN, one for each family outside, with the MAC address that gateways send
//	           to. kube-proxy translates packets from it like packets from a wire.
//	rp_filter  2 on the device: the route back to a client does not use it. The kernel takes the
//	           larger of "all" and this one (Documentation/networking/ip-sysctl.rst), so 2 also
//	           overrides a strict 1.
//	address    192.0.0.8/32, the dummy address (RFC 7600 section 4.8): with rp_filter 2 a device
//	           without any address accepts no packet (net/ipv4/fib_frontend.c,
//	           __fib_validate_source)
//	firewall   an nftables table that drops and counts tunnel packets that no gateway has sent: a
//	           tunnel packet may have any client's address inside
//
// Apply makes these parts, Check reports missing ones, Remove removes them. They do not outlast a
// reboot.
package nodetunnel

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/host/hostlink"
	"sluice.dev/sluice/nat/vxlan"
)

// Config describes the tunnel.
type Config struct {
	vxlan.Tunnel
	// Gateways are the addresses from which gateways send.
	Gateways []netip.Prefix
}

// device is the end of the tunnel for one family of outer headers.
type device struct {
	name  string
	local net.IP // any address of the family
}

var devices = [...]device{{"sluice-dsr", net.IPv4zero}, {"sluice-dsr6", net.IPv6zero}}

// probeName is the name of a device that is made to test whether the tunnel's device can be made.
const probeName = "sluice-dsr-try"

// dummy is the address of each device. Its scope keeps it from being chosen as a source elsewhere.
var dummy = &netlink.Addr{
	IPNet: &net.IPNet{IP: net.IPv4(192, 0, 0, 8).To4(), Mask: net.CIDRMask(32, 32)}, Scope: int(netlink.SCOPE_LINK),
}

// Apply makes devices, settings and firewall, and replaces differing ones. It returns a line for
// each change, even with an error. It changes nothing if the new devices cannot be made. It makes
// the firewall before the first device.
func Apply(c *Config) (changed []string, err error) {
	for _, d := range devices {
		if err := d.probe(c.Tunnel); err != nil {
			return nil, fmt.Errorf("device %s: %w", d.name, err)
		}
	}
	if err := c.protect(); err != nil {
		return nil, err
	}
	changed = append(changed, fmt.Sprintf("nftables table inet %s: tunnel packets only from %s", tableName,
		prefixes(c.Gateways)))
	for _, d := range devices {
		did, err := d.apply(c.Tunnel)
		if did != "" {
			changed = append(changed, did)
		}
		if err != nil {
			return changed, fmt.Errorf("device %s: %w", d.name, err)
		}
	}
	return changed, nil
}

// due returns the present device, or nil, and whether a new device must replace it. A host without
// IPv6 gets no IPv6 device.
func (d *device) due(t vxlan.Tunnel) (link netlink.Link, due bool, err error) {
	if d.v6() && !hasIPv6() {
		return nil, false, nil
	}
	link, err = d.find()
	return link, err == nil && (link == nil || d.differs(link, t) != ""), err
}

// apply makes the device, unless an equal one exists.
func (d *device) apply(t vxlan.Tunnel) (did string, err error) {
	link, due, err := d.due(t)
	switch {
	case err != nil, !due && link == nil:
		return "", err
	case !due:
		return "", d.settings(t)
	}
	if _, err := d.remove(); err != nil {
		return "", err
	}
	if err := d.make(d.link(t), t); err != nil {
		return "", err
	}
	return fmt.Sprintf("device %s: VXLAN %d, UDP port %d", d.name, t.VNI, t.Port), nil
}

// probe makes a device with the VNI and port of the wanted one, and removes it. The present device
// stays as it is. The probe's MAC address receives no packets. probe does nothing if no device must
// be made, or if the present one prevents another one.
func (d *device) probe(t vxlan.Tunnel) error {
	link, due, err := d.due(t)
	if err != nil || !due || link != nil && d.blocks(link, t) {
		return err
	}
	p := device{probeName, d.local}
	if _, err := p.remove(); err != nil { // a killed process left it
		return err
	}
	v := p.link(t)
	v.HardwareAddr = nil
	err = p.make(v, t)
	if _, lost := p.remove(); err == nil && lost != nil {
		err = fmt.Errorf("removing %s: %w", probeName, lost)
	}
	return err
}

// blocks reports whether the present device must be removed before the wanted one can be made: both
// have the same VNI and port, or the wanted one cannot share the present one's socket at the port.
func (d *device) blocks(link netlink.Link, t vxlan.Tunnel) bool {
	v, ok := link.(*netlink.Vxlan)
	return ok && v.Port == int(t.Port) && (v.VxlanId == int(t.VNI) || d.v6() && !v.UDP6ZeroCSumRx)
}

// make makes the device described by link, which must not exist, with its settings.
func (d *device) make(link *netlink.Vxlan, t vxlan.Tunnel) error {
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("making it: %w (VNI %d, UDP port %d; another VXLAN device may have them)", err, t.VNI, t.Port)
	}
	return d.settings(t)
}

// remove removes the device, and reports whether there was one.
func (d *device) remove() (was bool, err error) {
	link, err := d.find()
	if err != nil || link == nil {
		return false, err
	}
	if err := netlink.LinkDel(link); err != nil {
		return false, fmt.Errorf("deleting it: %w", err)
	}
	return true, nil
}

func (d *device) v6() bool { return d.local.To4() == nil }

// link describes the device. It learns no addresses, because it never sends.
func (d *device) link(t vxlan.Tunnel) *netlink.Vxlan {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = d.name, net.HardwareAddr(vxlan.NodeMAC[:])
	return &netlink.Vxlan{LinkAttrs: attrs, VxlanId: int(t.VNI), Port: int(t.Port), SrcAddr: d.local,
		UDP6ZeroCSumRx: d.v6()} // gateways send no UDP checksum (RFC 6935)
}

// find returns the device, or nil if there is none.
func (d *device) find() (netlink.Link, error) {
	link, err := netlink.LinkByName(d.name)
	switch {
	case errors.As(err, new(netlink.LinkNotFoundError)):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("looking it up: %w", err)
	}
	return link, nil
}

// differs returns how an existing device differs from the wanted one; "" if it does not.
func (d *device) differs(link netlink.Link, t vxlan.Tunnel) string {
	v, ok := link.(*netlink.Vxlan)
	switch {
	case !ok:
		return "is of type " + link.Type() + ", not vxlan"
	case v.VxlanId != int(t.VNI):
		return fmt.Sprintf("has VNI %d, not %d", v.VxlanId, t.VNI)
	case v.Port != int(t.Port):
		return fmt.Sprintf("has UDP port %d, not %d", v.Port, t.Port)
	case !bytes.Equal(v.HardwareAddr, vxlan.NodeMAC[:]):
		return fmt.Sprintf("has MAC address %v, not %v", v.HardwareAddr, net.HardwareAddr(vxlan.NodeMAC[:]))
	case d.v6() && !v.UDP6ZeroCSumRx:
		return "does not accept UDP without a checksum (udp6zerocsumrx)"
	}
	return ""
}

// sysctls returns the names and values of the device's sysctls. If the node forwards packets, or
// has IPv6, this device must do so as well, even if new devices do not by default
// (net.ipv4.conf.default).
func (d *device) sysctls() [][2]string {
	four, six := "ipv4/conf/"+d.name+"/", "ipv6/conf/"+d.name+"/"
	values := [][2]string{{four + "rp_filter", "2"}}
	if read("ipv4/ip_forward") == "1" {
		values = append(values, [2]string{four + "forwarding", "1"})
	}
	if hasIPv6() {
		values = append(values, [2]string{six + "addr_gen_mode", "1"})
		if read("ipv6/conf/all/disable_ipv6") == "0" {
			values = append(values, [2]string{six + "disable_ipv6", "0"})
		}
	}
	return values
}

// settings sets the device's sysctls and address, and brings it up.
func (d *device) settings(t vxlan.Tunnel) error {
	for _, v := range d.sysctls() {
		if err := write(v[0], v[1]); err != nil {
			return err
		}
	}
	link, err := d.find()
	switch {
	case err != nil:
		return err
	case link == nil:
		return errors.New("another program has deleted it: run this again")
	}
	if err := netlink.AddrReplace(link, dummy); err != nil {
		return fmt.Errorf("adding %v: %w", dummy.IPNet, err)
	}
	if err = netlink.LinkSetUp(link); errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("bringing it up: UDP port %d is in use, perhaps by the VXLAN device of a network plugin, "+
			"whose options differ: use another --port, and set directReturn.port of the gateways to it", t.Port)
	} else if err != nil {
		return fmt.Errorf("bringing it up: %w", err)
	}
	return nil
}

// Remove removes devices and firewall. It returns a line for each part that it removed, even with
// an error.
func Remove() (removed []string, err error) {
	for _, d := range append(devices[:], device{name: probeName}) {
		was, err := d.remove()
		if err != nil {
			return removed, fmt.Errorf("device %s: %w", d.name, err)
		}
		if was {
			removed = append(removed, "device "+d.name)
		}
	}
	was, err := unprotect()
	if err == nil && was {
		removed = append(removed, "nftables table inet "+tableName)
	}
	return removed, err
}

func prefixes(list []netip.Prefix) string {
	names := make([]string, len(list))
	for i, p := range list {
		if names[i] = p.Masked().String(); p.IsSingleIP() {
			names[i] = p.Addr().String()
		}
	}
	return strings.Join(names, ", ")
}

const sysctls = "/proc/sys/net/"

// write sets a sysctl. In a container /proc/sys is read-only, and the host's is mounted elsewhere.
func write(name, value string) error {
	const mounted = hostlink.HostProcSys + "/net"
	err := os.WriteFile(sysctls+name, []byte(value), 0)
	if errors.Is(err, unix.EROFS) && read(name) == value {
		return nil
	}
	if errors.Is(err, unix.EROFS) {
		if _, missing := os.Stat(mounted); missing != nil {
			return fmt.Errorf("setting %s: %w, as in a container: mount the host's /proc/sys/net writable at %s",
				dotted(name), err, mounted)
		}
		err = os.WriteFile(mounted+"/"+name, []byte(value), 0)
	}
	if err != nil {
		return fmt.Errorf("setting %s: %w", dotted(name), err)
	}
	return nil
}

// dotted returns a sysctl's name as sysctl(8) writes it.
func dotted(name string) string { return "net." + strings.ReplaceAll(name, "/", ".") }

func read(name string) string {
	b, _ := os.ReadFile(sysctls + name)
	return strings.TrimSpace(string(b))
}

func hasIPv6() bool {
	_, err := os.Stat(sysctls + "ipv6/conf/all")
	return err == nil
}
