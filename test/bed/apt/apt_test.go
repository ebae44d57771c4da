package apt

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMachineSource(t *testing.T) {
	const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
	for _, c := range []struct {
		name, file, text string
		want             Source // URI and SignedBy; empty URI: none
	}{
		{"deb822", "debian.sources",
			"Types: deb\n# a snapshot\nURIs: http://example.net/debian\nSuites: bookworm " +
				"bookworm-updates\nComponents: main\nSigned-By: " + keyring + "\n\n" +
				"Types: deb\nURIs: http://example.net/debian-security\nSuites: bookworm-security\n",
			Source{URI: "http://example.net/debian", SignedBy: keyring}},
		{"deb822, others first", "all.sources",
			"Types: deb\nURIs: https://example.org/node\nSuites: nodistro\n\nTypes: deb\nURIs: " +
				"http://example.net/debian\nSuites: trixie\n",
			Source{URI: "http://example.net/debian"}},
		{"deb822, turned off", "off.sources",
			"Enabled: no\nTypes: deb\nURIs: http://example.net/debian\nSuites: trixie\n", Source{}},
		{"deb822, sources only", "src.sources", "Types: deb-src\nURIs: http://example.net/debian\nSuites: trixie\n",
			Source{}},
		{"one line", "debian.list", "# comment\ndeb http://example.net/debian bookworm main contrib\n",
			Source{URI: "http://example.net/debian"}},
		{"one line with options", "debian.list", "deb [arch=amd64 signed-by=" + keyring +
			"] http://example.net/debian sid main\n",
			Source{URI: "http://example.net/debian", SignedBy: keyring}},
		{"security only", "security.list", "deb http://example.net/debian-security bookworm-security main\n", Source{}},
		{"another system", "ubuntu.list", "deb http://example.net/ubuntu noble main\n", Source{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			etc := t.TempDir()
			if err := os.Mkdir(filepath.Join(etc, "sources.list.d"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(etc, "sources.list.d", c.file), []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			got, err := MachineSource(etc)
			if c.want.URI == "" {
				if err == nil || !strings.Contains(err.Error(), etc) {
					t.Errorf("found %+v, %v; want an error that names %s", got, err, etc)
				}
				return
			}
			if err != nil || got.URI != c.want.URI || got.SignedBy != c.want.SignedBy {
				t.Errorf("found %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}
