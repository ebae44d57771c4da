package nodes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"path"
	"slices"
	"testing"
)

// An archive holds what an importer looks for: every name, a configuration whose digest of the
// layer is the layer's, and a layer in which directories come before what is in them.
func TestArchive(t *testing.T) {
	i := Image{
		Names: []string{"registry.test/a:1", "registry.test/b:2"},
		Files: map[string][]byte{"bin/deep/tool": []byte("tool"), "/pod": []byte("pod")}, Entrypoint: []string{"/pod"},
		Cmd:   []string{"pause"},
		Links: map[string]string{"sbin/tool": "/bin/deep/tool"},
	}
	var b bytes.Buffer
	if err := i.Archive(&b); err != nil {
		t.Fatal(err)
	}
	files, _ := untar(t, &b)
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil || len(manifest) != 1 {
		t.Fatalf("manifest %s: %v", files["manifest.json"], err)
	}
	m := manifest[0]
	if !slices.Equal(m.RepoTags, i.Names) || len(m.Layers) != 1 {
		t.Fatalf("manifest %+v", m)
	}
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
		Config struct{ Entrypoint, Cmd []string }
	}
	if err := json.Unmarshal(files[m.Config], &config); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(files[m.Layers[0]])
	if want := []string{"sha256:" + hex.EncodeToString(sum[:])}; !slices.Equal(config.RootFS.DiffIDs, want) {
		t.Errorf("layers %v in the configuration, want %v", config.RootFS.DiffIDs, want)
	}
	if !slices.Equal(config.Config.Entrypoint, i.Entrypoint) || !slices.Equal(config.Config.Cmd, i.Cmd) {
		t.Errorf("configuration %+v", config.Config)
	}
	layer, order := untar(t, bytes.NewReader(files[m.Layers[0]]))
	if string(layer["bin/deep/tool"]) != "tool" || string(layer["pod"]) != "pod" {
		t.Errorf("files %q", layer)
	}
	if string(layer["sbin/tool"]) != "-> /bin/deep/tool" {
		t.Errorf("a link to %q", layer["sbin/tool"])
	}
	for n, name := range order {
		if dir := path.Dir(path.Clean(name)); dir != "." && !slices.Contains(order[:n], dir+"/") {
			t.Errorf("%s comes before %s/", name, dir)
		}
	}
}

func untar(t *testing.T, r io.Reader) (files map[string][]byte, order []string) {
	t.Helper()
	files = map[string][]byte{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files, order
		} else if err != nil {
			t.Fatal(err)
		}
		order = append(order, h.Name)
		if files[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeSymlink {
			files[h.Name] = []byte("-> " + h.Linkname)
		}
	}
}
