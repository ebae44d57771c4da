package mapped

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugeSize = 8 << 20

// TestHugePages: a file on a tmpfs is mapped by huge pages, from Linux 6.1 on, also in another
// process that receives the file. The settings of the machine mostly forbid huge pages
// (shmem_enabled: never), but MADV_COLLAPSE ignores them.
func TestHugePages(t *testing.T) {
	f, _ := mustOpen(t, filepath.Join(sharedMemory(t), "table"), hugeSize)
	t.Cleanup(func() { f.Remove() })
	at := uintptr(unsafe.Pointer(&f.Mem[0]))
	if at%hugePage != 0 {
		t.Errorf("mapped at %#x, which is no multiple of %#x", at, hugePage)
	}
	if len(f.Mem) != hugeSize {
		t.Errorf("%d bytes are mapped, want %d", len(f.Mem), hugeSize)
	}
	if kB := byHugePages(t, f.Mem); kB != hugeSize/1024 {
		t.Errorf("by huge pages: %d kB, want all of %d", kB, hugeSize/1024)
	}
	if kB := byHugePages(t, taken(t, f.FD()).Mem); kB != hugeSize/1024 {
		t.Errorf("by huge pages in the next process: %d kB, want all of %d", kB, hugeSize/1024)
	}
}

// TestTakenPagesStay: mapping a file that another process uses does not move its pages.
func TestTakenPagesStay(t *testing.T) {
	file, err := os.Create(filepath.Join(sharedMemory(t), "table"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Write(make([]byte, hugeSize)); err != nil {
		t.Fatal(err)
	}
	f := taken(t, int(file.Fd()))
	if kB := byHugePages(t, f.Mem); kB != 0 {
		t.Errorf("%d kB of small pages were moved into huge ones", kB)
	}
	if Collapse(f.Mem); byHugePages(t, f.Mem) != hugeSize/1024 {
		t.Error("they cannot be moved at all: the test shows nothing")
	}
}

// sharedMemory returns a directory on a tmpfs.
func sharedMemory(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "sluice-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// taken maps a file as a process that has received it from another one does.
func taken(t *testing.T, fd int) *File {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := Take(os.NewFile(uintptr(fd), "table"), "table")
	if err := f.Map(hugeSize); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// byHugePages returns how many kB of a mapping are mapped by huge pages, according to smaps
// (proc(5)), after it has touched each page.
func byHugePages(t *testing.T, mem []byte) (kB int) {
	t.Helper()
	for i := 0; i < len(mem); i += 4096 {
		mem[i] = 1
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, ours, found := strings.Cut(string(maps), fmt.Sprintf("\n%x-", uintptr(unsafe.Pointer(&mem[0]))))
	if !found {
		t.Fatal("the mapping is not in /proc/self/smaps")
	}
	m := regexp.MustCompile(`ShmemPmdMapped: +(\d+) kB`).FindStringSubmatch(ours)
	if m == nil {
		t.Fatal("/proc/self/smaps has no ShmemPmdMapped")
	}
	if _, err := fmt.Sscan(m[1], &kB); err != nil {
		t.Fatal(err)
	}
	return kB
}
