package mapped

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFailedMapUnmapsNothingElse: a Map that fails, as of huge pages that nobody has reserved, does
// not unmap memory that other threads map meanwhile.
func TestFailedMapUnmapsNothingElse(t *testing.T) {
	const size = 10 << 20
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 100 {
				if err := mapBoth(size); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}

// mapBoth maps a file of huge pages, which fails without reserved ones, and one of other pages.
func mapBoth(size int) error {
	for _, flags := range []int{unix.MFD_HUGETLB | unix.MFD_HUGE_2MB, 0} {
		file, err := unix.MemfdCreate("sluice-test", unix.MFD_CLOEXEC|flags)
		if err != nil {
			return err
		}
		defer unix.Close(file)
		if err := unix.Ftruncate(file, int64(size)); err != nil {
			return err
		}
		mem, err := Map(file, size)
		if flags != 0 {
			if err == nil {
				_ = Unmap(mem)
			}
			continue
		}
		if err != nil {
			return err
		}
		if err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE); err != nil { // fails if a page is not mapped
			return err
		}
		if err := Unmap(mem); err != nil {
			return err
		}
	}
	return nil
}
