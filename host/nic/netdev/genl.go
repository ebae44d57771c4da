package netdev

import (
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// genlHeader is struct genlmsghdr: command, version, two reserved bytes that must be zero.
// (nl.Genlmsg has two bytes and serializes four, so the kernel gets the bytes that follow it in
// memory, and rejects them unless they are zero.)
type genlHeader [nl.SizeofGenlmsg]byte

// Len implements nl.NetlinkRequestData.
func (h genlHeader) Len() int { return len(h) }

// Serialize implements nl.NetlinkRequestData.
func (h genlHeader) Serialize() []byte { return h[:] }

// Ask sends one request of a generic netlink family and returns the attributes of the answer.
func Ask(family string, command byte, attr *nl.RtAttr) ([]byte, error) {
	answer, err := ask(unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, nl.NewRtAttr(unix.CTRL_ATTR_FAMILY_NAME,
		nl.ZeroTerminated(family)))
	if err != nil {
		return nil, err
	}
	id, err := Attribute(answer, unix.CTRL_ATTR_FAMILY_ID, 2)
	if err != nil {
		return nil, err
	}
	return ask(int(binary.NativeEndian.Uint16(id)), command, attr)
}

func ask(family int, command byte, attr *nl.RtAttr) ([]byte, error) {
	request := nl.NewNetlinkRequest(family, 0)
	request.AddData(genlHeader{command, 1})
	request.AddData(attr)
	answers, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	if len(answers) == 0 || len(answers[0]) < nl.SizeofGenlmsg {
		return nil, unix.ENODATA
	}
	return answers[0][nl.SizeofGenlmsg:], nil
}

// Attribute returns the value of an attribute, which must have at least so many bytes.
func Attribute(b []byte, kind uint16, bytes int) ([]byte, error) {
	const typeMask = 0x3fff // NLA_TYPE_MASK (include/uapi/linux/netlink.h)
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, err
	}
	for _, a := range attrs {
		if a.Attr.Type&typeMask == kind && len(a.Value) >= bytes {
			return a.Value, nil
		}
	}
	return nil, unix.ENODATA
}
