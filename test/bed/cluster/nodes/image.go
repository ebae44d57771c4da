package nodes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"runtime"
	"slices"
)

// Image is a container image of one layer.
type Image struct {
	// Names it is known by, each with registry and tag: "registry.k8s.io/pause:3.10".
	Names []string
	// Files by their paths in the image, all executable.
	Files map[string][]byte
	// Links are symbolic links by their paths in the image.
	Links map[string]string
	// Entrypoint is the command to run, and Cmd its arguments where a pod gives none.
	Entrypoint, Cmd []string
	// Env is the environment of the command.
	Env []string
}

// Archive writes the image as `docker save` does (Docker image specification v1.2, combined image
// JSON and filesystem changeset format), which containerd imports under the names in it.
func (i *Image) Archive(w io.Writer) error {
	layer, err := i.layer()
	if err != nil {
		return err
	}
	sum := sha256.Sum256(layer)
	digest := hex.EncodeToString(sum[:])
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "Env": append([]string{"PATH=/bin:/"},
			i.Env...), "WorkingDir": "/"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest}},
	})
	if err != nil {
		return err
	}
	sum = sha256.Sum256(config)
	configName := hex.EncodeToString(sum[:]) + ".json"
	manifest, err := json.Marshal([]map[string]any{{"Config": configName, "RepoTags": i.Names,
		"Layers": []string{digest + "/layer.tar"}}})
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	for _, f := range [...]struct {
		name    string
		content []byte
	}{{digest + "/layer.tar", layer}, {configName, config}, {"manifest.json", manifest}} {
		if err := addFile(t, f.name, 0o644, f.content); err != nil {
			return err
		}
	}
	return t.Close()
}

// layer is a tar of the files and the directories that they are in.
func (i *Image) layer() ([]byte, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	made := map[string]bool{".": true}
	var addDir func(dir string) error
	addDir = func(dir string) error {
		if made[dir] {
			return nil
		}
		made[dir] = true
		if err := addDir(path.Dir(dir)); err != nil {
			return err
		}
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755})
	}
	for _, name := range slices.Sorted(maps.Keys(i.Files)) {
		clean := path.Clean("/" + name)[1:]
		if err := addDir(path.Dir(clean)); err != nil {
			return nil, err
		}
		if err := addFile(t, clean, 0o755, i.Files[name]); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(i.Links)) {
		clean := path.Clean("/" + name)[1:]
		if err := addDir(path.Dir(clean)); err != nil {
			return nil, err
		}
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: clean, Linkname: i.Links[name],
			Mode: 0o777}); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func addFile(t *tar.Writer, name string, mode int64, content []byte) error {
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode,
		Size: int64(len(content))}); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	_, err := t.Write(content)
	return err
}
