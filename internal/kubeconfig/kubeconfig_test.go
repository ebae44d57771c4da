package kubeconfig_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sluice.dev/sluice/internal/kubeconfig"
	"sluice.dev/sluice/internal/trusted"
)

// TestTrusted: Load rejects a kubeconfig, and each file that it names, if others could change it:
// the files decide which API server is trusted. It accepts the files of a Secret, which are links.
func TestTrusted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(filepath.Join(dir, "..2026"), 0o755))
	must(os.Symlink("..2026", filepath.Join(dir, "..data")))
	fields := map[string]string{"ca.crt": "certificate-authority", "tls.crt": "client-certificate",
		"tls.key": "client-key", "token": "tokenFile"}
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
	cluster, user := "server: 'https://192.0.2.1'", ""
	for name, field := range fields {
		entry := fmt.Sprintf(", %s: %s", field, filepath.Join(dir, name))
		if field == "certificate-authority" {
			cluster += entry
		} else {
			user += entry
		}
	}
	text += fmt.Sprintf("clusters: [{name: c, cluster: {%s}}]\nusers: [{name: u, user: {%s}}]\n", cluster, user[2:])
	names := []string{"config"}
	for name := range fields {
		names = append(names, name)
	}
	for _, name := range names {
		must(os.WriteFile(filepath.Join(dir, "..2026", name), []byte(text), 0o600))
		must(os.Symlink("..data/"+name, filepath.Join(dir, name)))
	}
	config := filepath.Join(dir, "config")
	const setting = "--kubeconfig"
	if c, err := kubeconfig.Load(config, setting); err != nil || c.Host != "https://192.0.2.1" {
		t.Fatalf("files of a Secret: %v", err)
	}
	for _, name := range names {
		path := filepath.Join(dir, "..2026", name)
		must(os.Chmod(path, 0o666))
		var refused *trusted.Refusal
		if _, err := kubeconfig.Load(config, setting); !errors.As(err, &refused) ||
			!strings.HasPrefix(err.Error(), setting+": ") || !strings.Contains(err.Error(), name) {
			t.Errorf("%s that all may write: %v", name, err)
		}
		must(os.Chmod(path, 0o600))
	}
	if t.Failed() {
		return // the next step blocks for ever in a Load that does not check the file type
	}
	must(os.Remove(config))
	must(syscall.Mkfifo(config, 0o600))
	if _, err := kubeconfig.Load(config, setting); err == nil || !strings.Contains(err.Error(), "FIFO") {
		t.Errorf("a FIFO: %v", err)
	}
}
