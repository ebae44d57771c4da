package apt

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The first source of Debian's archive is found, in either style, among those of others.
func TestMachineSource(t *testing.T) {
	for _, tt := range []struct {
		name, file, text string
		want             Source
		refused          string
	}{
		{name: "stanzas", file: "sources.list.d/debian.sources",
			text: "Types: deb\nURIs: http://deb.test/debian\nSuites: bookworm bookworm-updates\nComponents: main\nSigned-By: /keys/debian.gpg\n",
			want: Source{URI: "http://deb.test/debian", SignedBy: "/keys/debian.gpg", Suites: []string{"bookworm", "bookworm-updates"}}},
		{name: "a stanza that is off", file: "sources.list.d/debian.sources",
			text: "Types: deb\nEnabled: no\nURIs: http://off.test\nSuites: sid\n\nTypes: deb-src deb\nURIs: http://deb.test\nSuites: sid\n",
			want: Source{URI: "http://deb.test", Suites: []string{"sid"}}},
		{name: "lines", file: "sources.list",
			text: "# deb http://no.test stable main\ndeb-src http://no.test stable main\ndeb [arch=amd64 signed-by=/keys/k.gpg] http://deb.test trixie main\n",
			want: Source{URI: "http://deb.test", SignedBy: "/keys/k.gpg", Suites: []string{"trixie"}}},
		{name: "somebody else's", file: "sources.list", text: "deb http://packages.test cloud-sdk-bookworm main\n", refused: "no source of Debian's archive"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			etc := t.TempDir()
			path := filepath.Join(etc, tt.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(tt.text), 0o644); err != nil {
				t.Fatal(err)
			}
			got, err := MachineSource(etc)
			if tt.refused != "" {
				if err == nil || !strings.Contains(err.Error(), tt.refused) {
					t.Errorf("%+v, %v; want an error about %s", got, err, tt.refused)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}
