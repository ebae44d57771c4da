//go:build root

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// Ports of the servers and of their Services.
const (
	nginxPort   = 8110
	haproxyPort = 8111
	eximPort    = 8112
	dnsdistPort = 8113 // UDP
)

const nginxConfig = `daemon off;
user root;
pid %[1]s/nginx.pid;
error_log %[1]s/nginx.log;
events {}
http {
  log_format proxy '$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr $proxy_protocol_server_port';
  access_log %[1]s/nginx.log proxy;
  client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s;
  scgi_temp_path %[1]s;
  server {
    listen 8110 proxy_protocol; listen [::]:8110 proxy_protocol;
    location / { return 200 "$proxy_protocol_addr $proxy_protocol_port\n"; }
  }
}
`

const haproxyConfig = `global
  log stdout format raw local0
defaults
  mode http
  timeout client 60s
  timeout connect 5s
  timeout server 60s
frontend web
  bind 0.0.0.0:8111 accept-proxy
  bind [::]:8111 v6only accept-proxy
  log global
  option httplog
  http-request return status 200 content-type text/plain lf-string "%[src] %[src_port]\n"
`

// Exim takes no mail: it greets, answers EHLO and QUIT, and logs.
const eximConfig = `primary_hostname = mail.example.org
exim_user = root
exim_group = root
never_users =
spool_directory = %[1]s
log_file_path = %[1]s/exim-%%slog.log
log_selector = +smtp_connection +incoming_port +proxy
pid_file_path = %[1]s/exim.pid
hosts_proxy = *
host_lookup =
dns_retrans = 1s
dns_retry = 1
keep_environment =
rfc1413_query_timeout = 0s
tls_advertise_hosts =
daemon_smtp_ports = 8112
local_interfaces = <; 0.0.0.0 ; ::0
`

const dnsdistConfig = `setLocal("0.0.0.0:8113")
addLocal("[::]:8113")
setACL({"0.0.0.0/0", "::/0"})
setProxyProtocolACL({"0.0.0.0/0", "::/0"})
setSecurityPollSuffix("")
addAction(AllRule(), LogAction("%[1]s/dnsdist-queries.log", false, true, false))
addAction(AllRule(), SpoofAction({"192.0.2.53"}))
`

// ownUsers runs a program with users of its own: Exim does not start without a user of Debian's.
const ownUsers = `mount --bind "$0" /etc/passwd; mount --bind "$1" /etc/group; shift; exec "$@"`

// proxyServers are servers of Debian on one host, which read PROXY headers and log.
type proxyServers struct {
	host     *topo.Host
	packages string // directory
	dir      string
}

// startProxyServers starts nginx, HAProxy, Exim and dnsdist on a host.
func startProxyServers(ctx context.Context, t *testing.T, h *topo.Host) *proxyServers {
	t.Helper()
	packages, err := cluster.FetchPackages(ctx, os.Stderr, "nginx, HAProxy, Exim, dnsdist and tshark", "nginx",
		"haproxy", "exim4-daemon-heavy", "tshark", "dnsdist")
	if err != nil {
		t.Fatal(err)
	}
	s := &proxyServers{h, packages, t.TempDir()}
	file := func(name, text string) string {
		path := filepath.Join(s.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	s.start(t, "nginx", "usr/sbin/nginx", "-c", file("nginx.conf", fmt.Sprintf(nginxConfig, s.dir)), "-e",
		filepath.Join(s.dir, "nginx.log"))
	s.start(t, "haproxy", "usr/sbin/haproxy", "-db", "-f", file("haproxy.conf", haproxyConfig))
	s.start(t, "dnsdist", "usr/bin/dnsdist", "--supervised", "--disable-syslog", "-C",
		file("dnsdist.conf", fmt.Sprintf(dnsdistConfig, s.dir)))
	users := "root:x:0:0::/:/bin/sh\nDebian-exim:x:104:106::/:/bin/sh\n"
	name, args := cluster.ProgramOf(packages, "usr/sbin/exim4", "-bdf", "-C",
		file("exim.conf", fmt.Sprintf(eximConfig, s.dir)))
	s.run(t, "exim", "unshare", append([]string{"--mount", "--propagation", "private", "/bin/sh", "-ec", ownUsers,
		file("passwd", users), file("group", "root:x:0:\nDebian-exim:x:106:\n"), name}, args...)...)
	return s
}

func (s *proxyServers) start(t *testing.T, log, path string, args ...string) *topo.Process {
	t.Helper()
	name, all := cluster.ProgramOf(s.packages, path, args...)
	return s.run(t, log, name, all...)
}

// run starts a program whose output goes to a log.
func (s *proxyServers) run(t *testing.T, log, name string, args ...string) *topo.Process {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(s.dir, log+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := s.host.Start(topo.Command{Path: name, Args: args, Stdout: f, Stderr: f})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// log returns a server's logs.
func (s *proxyServers) log(name string) (all string) {
	files, _ := filepath.Glob(filepath.Join(s.dir, name+"*.log"))
	for _, file := range files {
		b, _ := os.ReadFile(file)
		all += string(b)
	}
	return all
}

// proxyDialog is a connection to one of the servers: two questions, whose answers have the client's
// address and port.
type proxyDialog struct {
	server string
	port   uint16
	first  string // prefix of the line that the server sends first; "" if the client does
	asks   [2]string
	last   string // sent at the end
	// answer and logged are formats for the client's address, client's port, and the VIP.
	answer, logged string
}

var proxyDialogs = []proxyDialog{
	{"nginx", nginxPort, "", [2]string{get, get}, "", "%[1]s %[2]d", "%[1]s %[2]d %[3]s 8110"},
	{"haproxy", haproxyPort, "", [2]string{get, get}, "", "%[1]s %[2]d", "%[1]s:%[2]d ["},
	{"exim", eximPort, "220 mail.example.org", [2]string{"EHLO client\r\n", "EHLO again\r\n"}, "QUIT\r\n",
		"[%[1]s]", "[%[1]s]:%[2]d closed by QUIT"},
}

const get = "GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"

// talk opens a connection, asks, calls between, and asks again. It returns the client's end.
func (d *proxyDialog) talk(l *lab, vip string, between func()) (netip.AddrPort, error) {
	c, err := l.Clients[0].Dial(l.ctx, "tcp", at(vip, d.port).String())
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	client := c.LocalAddr().(*net.TCPAddr).AddrPort()
	r := bufio.NewReader(c)
	until := func(what string) error {
		for all := ""; ; {
			line, err := r.ReadString('\n')
			if all += line; err != nil {
				return fmt.Errorf("%q, want %q: %w", all, what, err)
			}
			if strings.Contains(line, what) {
				return nil
			}
		}
	}
	if d.first != "" {
		if err := until(d.first); err != nil {
			return client, err
		}
	}
	for i, ask := range d.asks {
		if i == 1 && between != nil {
			between()
		}
		if _, err := c.Write([]byte(ask)); err != nil {
			return client, err
		}
		if err := until(fmt.Sprintf(d.answer, client.Addr(), client.Port(), vip)); err != nil {
			return client, err
		}
	}
	_, err = io.WriteString(c, d.last)
	return client, err
}

// askDNS sends a question to dnsdist at a VIP, and waits until its log has the client's address.
func (s *proxyServers) askDNS(l *lab, vip string) {
	l.t.Helper()
	c, err := l.Clients[0].Dial(l.ctx, "udp", at(vip, dnsdistPort).String())
	if err != nil {
		l.t.Fatal(err)
	}
	defer c.Close()
	const question = "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03org\x00\x00\x01\x00\x01"
	client := c.LocalAddr().String()
	l.eventually(20*time.Second, "dnsdist answers at "+vip, func() bool {
		_ = c.SetDeadline(time.Now().Add(time.Second))
		if _, err := c.Write([]byte(question)); err != nil {
			return false
		}
		got := make([]byte, 512)
		n, err := c.Read(got)
		return err == nil && strings.HasSuffix(string(got[:n]), "\xc0\x00\x02\x35")
	})
	l.within("dnsdist logs "+client, func() bool {
		return strings.Contains(s.log("dnsdist-queries"), "Packet from "+client+" for example.org.")
	})
}

// capture starts to capture the servers' packets on their host. The file is complete when the
// process has ended.
func (s *proxyServers) capture(t *testing.T) (file string, p *topo.Process) {
	t.Helper()
	file = filepath.Join(s.dir, "packets")
	p = s.start(t, "dumpcap", "usr/bin/dumpcap", "-P", "-i", s.host.Interfaces[0].Name, "-f", "tcp portrange 8110-8112",
		"-w", file)
	for range 500 {
		if strings.Contains(s.log("dumpcap"), "File: ") {
			return file, p
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("dumpcap: %s", s.log("dumpcap"))
	return "", nil
}

// dissect compares what Wireshark's dissector reads in a capture with the ends of the clients'
// connections.
func (s *proxyServers) dissect(t *testing.T, l *lab, file string, clients map[netip.AddrPort]netip.AddrPort) {
	t.Helper()
	name, args := cluster.ProgramOf(s.packages, "usr/bin/tshark", "-r", file, "-n", "-Y", "proxy", "-T", "fields", "-E",
		"separator=,", "-e", "proxy.src.ipv4", "-e", "proxy.src.ipv6", "-e", "proxy.srcport", "-e", "proxy.dst.ipv4",
		"-e", "proxy.dst.ipv6", "-e", "proxy.dstport", "-e", "proxy.v2.cmd", "-e", "tcp.len", "-e", "_ws.malformed",
		"-e", "proxy.bad_format", "-e", "proxy.header.length_too_small", "-e", "proxy.v2.unknown")
	cmd := exec.CommandContext(l.ctx, name, args...)
	cmd.Env = append(os.Environ(), "HOME="+s.dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v: %s", err, &stderr)
	}
	for client, vip := range clients {
		want := fmt.Sprintf("%v,,%d,%v,,%d,1,28,,,,", client.Addr(), client.Port(), vip.Addr(), vip.Port())
		if client.Addr().Is6() {
			want = fmt.Sprintf(",%v,%d,,%v,%d,1,52,,,,", client.Addr(), client.Port(), vip.Addr(), vip.Port())
		}
		if !strings.Contains("\n"+string(out), "\n"+want+"\n") {
			t.Errorf("Wireshark does not read %q in\n%s", want, out)
		}
	}
	t.Logf("Wireshark reads, for example, %q", strings.SplitN(string(out), "\n", 2)[0])
}

// TestProxyServers: nginx, HAProxy and Exim, which speaks first, and dnsdist over UDP, see and log
// the client's address and port, over IPv4 and IPv6. TCP connections outlive gateways meanwhile.
// Wireshark's dissector reads the header. The packages are downloaded once, so it is one of the
// long runs.
func TestProxyServers(t *testing.T) {
	if !full() {
		t.Skip("make -C test e2e runs it: it downloads servers of Debian")
	}
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, small: true, options: handsOver})
	l.damaged = true // packets of killed gateways' connections reach a kernel that has no VIP
	s := startProxyServers(l.ctx, t, l.Backends[0])
	var list []launch.Service
	for i := range proxyDialogs {
		d := &proxyDialogs[i]
		to := endpoints(l.Backends[0])
		for i := range to {
			to[i].Port = int32(d.port)
		}
		list = append(list, launch.Service{Name: d.server, Port: int32(d.port), VIPs: []string{vip4, vip6},
			Endpoints: to, Annotations: map[string]string{"sluice.dev/proxy-protocol": "v2"}})
	}
	to := endpoints(l.Backends[0])
	for i := range to {
		to[i].Port = dnsdistPort
	}
	l.apply(append(list, launch.Service{Name: "dnsdist", Port: dnsdistPort, UDP: true, VIPs: []string{vip4, vip6},
		Endpoints: to, Annotations: map[string]string{"sluice.dev/proxy-protocol": "v2+udp"}})...)
	packets, capture := s.capture(t)
	clients := map[netip.AddrPort]netip.AddrPort{} // to VIPs
	for i := range proxyDialogs {
		d := &proxyDialogs[i]
		for _, vip := range []string{vip4, vip6} {
			l.eventually(20*time.Second, d.server+" answers at "+vip, func() bool {
				_, err := d.talk(l, vip, nil)
				return err == nil
			})
			for during, between := range map[string]func(){"gateway killed": l.killAndStart, "hand-over": l.takeOver} {
				client, err := d.talk(l, vip, between)
				if err != nil {
					t.Errorf("%s, %s, %s: %v\n%s", d.server, vip, during, err, s.log(d.server))
					continue
				}
				clients[client] = at(vip, d.port)
				want := fmt.Sprintf(d.logged, client.Addr(), client.Port(), vip)
				l.within(d.server+" logs "+want, func() bool { return strings.Contains(s.log(d.server), want) })
			}
		}
	}
	for _, vip := range []string{vip4, vip6} {
		s.askDNS(l, vip)
	}
	if err := capture.Stop(5 * time.Second); err != nil {
		t.Errorf("dumpcap: %v: %s", err, s.log("dumpcap"))
	}
	s.dissect(t, l, packets, clients)
	l.handOverNoMore()
}
