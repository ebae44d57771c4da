package mapped

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unsafe"
)

// TestHugePages: a file on a tmpfs is mapped by huge pages, from Linux 6.1 on. The settings of the
// machine mostly forbid it (shmem_enabled: never); MADV_COLLAPSE works all the same.
func TestHugePages(t *testing.T) {
	const size = 8 << 20
	dir, err := os.MkdirTemp("/dev/shm", "sluice-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	f, _ := mustOpen(t, filepath.Join(dir, "table"), size)
	t.Cleanup(func() { f.Remove() })
	at := uintptr(unsafe.Pointer(&f.Mem[0]))
	if at%hugePage != 0 {
		t.Errorf("mapped at %#x, which is no multiple of %#x", at, hugePage)
	}
	if len(f.Mem) != size {
		t.Errorf("%d bytes are mapped, want %d", len(f.Mem), size)
	}
	for i := 0; i < size; i += 4096 {
		f.Mem[i] = 1
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, ours, found := strings.Cut(string(maps), fmt.Sprintf("%x-", at))
	if !found {
		t.Fatal("the mapping is not in /proc/self/smaps")
	}
	if m := regexp.MustCompile(`ShmemPmdMapped: +(\d+) kB`).FindStringSubmatch(ours); m == nil ||
		m[1] != fmt.Sprint(size/1024) {
		t.Errorf("by huge pages: %v, want all of %d kB", m, size/1024)
	}
}
