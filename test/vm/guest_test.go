package vm

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestArchive reads back what is written, by the format's description: the kernel's parser is in
// init/initramfs.c.
func TestArchive(t *testing.T) {
	var b bytes.Buffer
	a := &archive{w: &b}
	files := map[string]string{"init": "\x7fELF and more", "order.json": "{}", "early/000-a.ko": strings.Repeat("x",
		4097), "empty": ""}
	names := []string{"init", "order.json", "early", "early/000-a.ko", "empty"}
	for _, name := range names {
		mode := modeFile
		if name == "early" {
			mode = modeDir
		}
		a.add(name, mode, []byte(files[name]))
	}
	if err := a.end(); err != nil {
		t.Fatal(err)
	}
	rest := b.Bytes()
	take := func(n int) []byte {
		t.Helper()
		if len(rest) < n {
			t.Fatalf("the archive ends %d bytes early", n-len(rest))
		}
		part := rest[:n]
		rest = rest[n:]
		return part
	}
	pad := func(n int) { take(-n & 3) }
	for _, want := range append(names, "TRAILER!!!") {
		header := string(take(110))
		var mode, size, name int
		for _, f := range []struct {
			at   int
			into *int
		}{{14, &mode}, {54, &size}, {94, &name}} {
			if _, err := fmt.Sscanf(header[f.at:f.at+8], "%x", f.into); err != nil {
				t.Fatal(err)
			}
		}
		if got := string(take(name)); header[:6] != "070701" || got != want+"\x00" {
			t.Fatalf("found %q, %q, want %q", header[:6], got, want)
		}
		pad(110 + name)
		if got := string(take(size)); got != files[want] {
			t.Errorf("%s has %d bytes, want %d", want, len(got), len(files[want]))
		}
		pad(size)
	}
	if len(rest) > 0 {
		t.Errorf("%d bytes behind the trailer", len(rest))
	}
}

func TestClosure(t *testing.T) {
	k := Kernel{Release: "1", Dir: t.TempDir()}
	if err := os.MkdirAll(k.Modules(), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"modules.dep": "kernel/net/9p/9pnet.ko.xz: kernel/fs/netfs/netfs.ko.xz\n" +
			"kernel/fs/netfs/netfs.ko.xz:\n" +
			"kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz\n" +
			"kernel/drivers/char/virtio_console.ko.xz:\n",
		"modules.builtin": "kernel/drivers/virtio/virtio_pci.ko\n",
	} {
		if err := os.WriteFile(filepath.Join(k.Modules(), name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := k.closure([]string{"virtio_pci", "9p", "virtio_console", "9pnet"})
	want := []string{"kernel/fs/netfs/netfs.ko.xz", "kernel/net/9p/9pnet.ko.xz", "kernel/fs/9p/9p.ko.xz",
		"kernel/drivers/char/virtio_console.ko.xz"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("to load: %v, %v; want %v: what is needed first, each once, nothing that is built in", got, err, want)
	}
	if _, err := k.closure([]string{"overlay"}); err == nil || !strings.Contains(err.Error(), "overlay") {
		t.Errorf("a module that is missing: %v", err)
	}
}

func TestNICsOfFlags(t *testing.T) {
	two, err := ParsePair("left=igb")
	if err != nil || len(two) != 2 || two[0] != (NIC{"left", "igb", "left"}) ||
		two[1] != (NIC{"left-peer", "virtio-net", "left"}) {
		t.Errorf("left=igb: %+v, %v", two, err)
	}
	one, err := ParseNIC("b=e1000@wire")
	if err != nil || one != (NIC{"b", "e1000", "wire"}) {
		t.Errorf("b=e1000@wire: %+v, %v", one, err)
	}
	for _, bad := range []string{"", "left", "=igb", "left=ixgbe", "elevenchars=igb"} {
		if got, err := ParsePair(bad); err == nil {
			t.Errorf("pair %q: %+v", bad, got)
		}
	}
	for _, bad := range []string{"left=igb", "left@wire", "=igb@wire", "left=igb@", "sixteen-letters-=igb@wire"} {
		if got, err := ParseNIC(bad); err == nil {
			t.Errorf("NIC %q: %+v", bad, got)
		}
	}
}

// TestNICArguments: NICs of one hub hear each other, and only an igb's root port can be anybody's.
func TestNICArguments(t *testing.T) {
	g := guest{Config: Config{NICs: []NIC{{"a", "igb", "x"}, {"b", "virtio-net", "x"}, {"c", "e1000", "y"}}}}
	args := strings.Join(g.nicArgs(), " ")
	for _, want := range []string{
		"hubport,id=net0,hubid=0", "hubport,id=net1,hubid=0", "hubport,id=net2,hubid=1",
		"igb,netdev=net0,mac=52:54:00:53:4c:01,romfile=,bus=port0", "e1000,netdev=net2,mac=52:54:00:53:4c:03,romfile=",
	} {
		if !strings.Contains(args, want) {
			t.Errorf("QEMU's arguments have no %s: %s", want, args)
		}
	}
	if strings.Contains(args, "port2") {
		t.Errorf("a device of PCI is behind a port of PCI Express: %s", args)
	}
}

func TestEnvironment(t *testing.T) {
	got := Environment([]string{"PATH=/bin", "HOME=/root", "TOKEN=secret", "SLUICE_VALIDATE=1", "GOFLAGS=-mod=mod",
		"HTTPS_PROXY=x"})
	if want := []string{"PATH=/bin", "HOME=/root", "SLUICE_VALIDATE=1", "GOFLAGS=-mod=mod"}; !slices.Equal(got, want) {
		t.Errorf("a guest gets %v, want %v", got, want)
	}
}
