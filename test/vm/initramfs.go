package vm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"sluice.dev/sluice/test/vm/pid1"
)

// archive writes a cpio archive in the "new ASCII" format, as the kernel unpacks one for its first
// root (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	w   io.Writer
	ino int
	err error // the first
}

const (
	modeDir  = 0o040755
	modeFile = 0o100755
)

func (a *archive) add(name string, mode int, data []byte) {
	if a.err != nil {
		return
	}
	a.ino++
	// c_magic, c_ino, c_mode, c_uid, c_gid, c_nlink, c_mtime, c_filesize, c_maj, c_min, c_rmaj,
	// c_rmin, c_namesize, c_chksum
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	a.padded([]byte(header + name + "\x00"))
	a.padded(data)
}

// padded writes bytes padded to whole words.
func (a *archive) padded(b []byte) {
	if a.err != nil {
		return
	}
	if _, a.err = a.w.Write(b); a.err == nil {
		_, a.err = a.w.Write(make([]byte, -len(b)&3))
	}
}

func (a *archive) end() error {
	a.add("TRAILER!!!", 0, nil)
	return a.err
}

// earlyModules are the modules that the root needs, before which nothing can be looked up.
var earlyModules = []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"}

// writeInitramfs writes a first root with this program as /init, its order, and the modules that it
// needs for that.
func writeInitramfs(path string, k Kernel, o pid1.Order) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	order, err := json.Marshal(o)
	if err != nil {
		return err
	}
	a := &archive{w: f}
	a.add("init", modeFile, program)
	a.add(strings.TrimPrefix(pid1.OrderFile, "/"), modeFile, order)
	a.add(strings.TrimPrefix(pid1.ModuleDir, "/"), modeDir, nil)
	modules, err := k.closure(earlyModules)
	if err != nil {
		return err
	}
	for i, m := range modules {
		data, err := os.ReadFile(filepath.Join(k.Modules(), m))
		if err != nil {
			return err
		}
		a.add(fmt.Sprintf("%s/%03d-%s", strings.TrimPrefix(pid1.ModuleDir, "/"), i, filepath.Base(m)), modeFile, data)
	}
	return a.end()
}

// closure returns the files of some modules and of their dependencies, in the order to load them
// in. Modules that are built into the kernel have no file.
func (k Kernel) closure(names []string) (files []string, err error) {
	deps, err := os.ReadFile(filepath.Join(k.Modules(), "modules.dep"))
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(k.Modules(), "modules.builtin"))
	if err != nil {
		return nil, err
	}
	needs := map[string][]string{} // by the module's name
	for line := range strings.Lines(string(deps)) {
		file, after, _ := strings.Cut(strings.TrimSpace(line), ":")
		needs[moduleName(file)] = append([]string{file}, strings.Fields(after)...)
	}
	have := map[string]bool{}
	for _, name := range names {
		chain, ok := needs[name]
		if !ok && !bytes.Contains(builtin, []byte("/"+name+".ko\n")) {
			return nil, fmt.Errorf("kernel %s has no module %s", k.Release, name)
		}
		// modules.dep(5): the module to load first comes last.
		for i := len(chain) - 1; i >= 0; i-- {
			if !have[chain[i]] {
				have[chain[i]] = true
				files = append(files, chain[i])
			}
		}
	}
	return files, nil
}

// moduleName is a module's name as the kernel has it, of its file.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".")
	return strings.ReplaceAll(name, "-", "_")
}
