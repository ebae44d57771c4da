package workers

import (
	"os"
	"path/filepath"
	"testing"
)

// TestQuota: finds a limit in the process's cgroup and in those above, of both versions.
func TestQuota(t *testing.T) {
	for _, c := range []struct {
		name, cgroup string
		files        map[string]string
		want         string // the file with the limit
	}{
		{"none", "0::/a/b\n", map[string]string{"a/cpu.max": "max 100000\n", "a/b/cpu.max": "max 1000\n"}, ""},
		{"its own", "0::/a/b\n", map[string]string{"a/b/cpu.max": "50000 100000\n"}, "a/b/cpu.max"},
		{"above", "0::/a/b\n", map[string]string{"a/cpu.max": "50000 100000\n", "a/b/cpu.max": "max 1000\n"},
			"a/cpu.max"},
		{"in a container", "0::/\n", map[string]string{"cpu.max": "50000 100000\n"}, "cpu.max"},
		{"another's", "0::/a/b\n", map[string]string{"a/c/cpu.max": "50000 100000\n"}, ""},
		{"version 1", "4:memory:/m\n3:cpu,cpuacct:/a\n", map[string]string{"cpu,cpuacct/a/cpu.cfs_quota_us": "50000\n"},
			"cpu,cpuacct/a/cpu.cfs_quota_us"},
		{"version 1, none", "3:cpu,cpuacct:/a\n", map[string]string{"cpu,cpuacct/a/cpu.cfs_quota_us": "-1\n"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range c.files {
				path := filepath.Join(dir, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want := c.want
			if want != "" {
				want = filepath.Join(dir, want)
			}
			if file, limited := quotaOf(dir, c.cgroup); file != want || limited != (want != "") {
				t.Errorf("%q, %t, want %q", file, limited, want)
			}
		})
	}
}
