package xsk

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/flowtable/mapped"
)

// TestFramesInHugePages: if no huge pages are reserved, frames are in transparent huge pages, also
// in the process that takes them over.
func TestFramesInHugePages(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		t.Skip("the kernel has no transparent huge pages (CONFIG_TRANSPARENT_HUGEPAGE)")
	}
	u, err := NewUMEM(UMEMConfig{Frames: 4096, FrameSize: 2048})
	must(t, err)
	inHugePages(t, u)
	shape, files := u.Shape()
	file, err := unix.FcntlInt(uintptr(files[0]), unix.F_DUPFD_CLOEXEC, 0)
	must(t, err)
	next, _, err := Take(shape, []int{file})
	must(t, err)
	inHugePages(t, next)
	must(t, next.Abandon())
	must(t, u.Close())
}

// inHugePages fails unless smaps (proc(5)) shows that all frames are mapped by huge pages.
func inHugePages(t *testing.T, u *UMEM) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	must(t, err)
	at := uintptr(unsafe.Pointer(&u.mem[0]))
	_, ours, found := strings.Cut(string(maps), fmt.Sprintf("\n%x-", at))
	if !found {
		t.Fatalf("the mapping at %x is not in /proc/self/smaps", at)
	}
	got := regexp.MustCompile(`ShmemPmdMapped: +(\d+) kB`).FindStringSubmatch(ours)
	if got == nil || got[1] != fmt.Sprint(len(u.mem)/1024) {
		t.Errorf("by huge pages: %v, want all of %d kB", got, len(u.mem)/1024)
	}
}

// BenchmarkFramePages measures the first access to a packet, in pages of 4 KiB and in huge pages.
// Frames come in random order, as they do after some time of operation.
func BenchmarkFramePages(b *testing.B) {
	const headroom = 256
	for _, frames := range []int{8192, 32768} {
		order := rand.New(rand.NewPCG(1, 2)).Perm(frames)
		for _, huge := range []bool{false, true} {
			b.Run(fmt.Sprintf("frames=%d/huge=%v", frames, huge), func(b *testing.B) {
				file, err := unix.MemfdCreate("sluice-bench", unix.MFD_CLOEXEC)
				must(b, err)
				defer unix.Close(file)
				must(b, unix.Ftruncate(file, int64(frames)*2048))
				mem, err := mapped.Map(file, frames*2048)
				must(b, err)
				defer func() { must(b, mapped.Unmap(mem)) }()
				if huge {
					mapped.Collapse(mem)
				}
				for b.Loop() {
					for _, frame := range order {
						mem[frame*2048+headroom]++
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*frames), "ns/frame")
			})
		}
	}
}
