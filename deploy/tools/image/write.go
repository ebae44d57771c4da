package main

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// Annotations with the name of an image in a layout (OCI image specification, annotations.md;
// containerd's own for `ctr images import`).
const (
	refName        = "org.opencontainers.image.ref.name"
	containerdName = "io.containerd.image.name"
)

// noRegistry is the prefix of a name without a registry (github.com/distribution/reference,
// normalize.go). containerd uses the annotation unchanged, and a kubelet requests the full name.
const noRegistry = "docker.io/library/"

// write writes an index as a tar of an OCI image layout, with the files in the order of their names
// and with time 0. The file gets its name when it is complete.
func write(out string, index v1.ImageIndex, name string) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(out), ".sluice-image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	root := filepath.Join(dir, "layout")
	path, err := layout.Write(root, empty.Index)
	if err != nil {
		return err
	}
	if err := path.AppendIndex(index,
		layout.WithAnnotations(map[string]string{refName: name, containerdName: noRegistry + name})); err != nil {
		return err
	}
	part := filepath.Join(dir, "image.tar")
	f, err := os.Create(part)
	if err != nil {
		return err
	}
	if err := errors.Join(archive(f, root), f.Close()); err != nil {
		return err
	}
	return os.Rename(part, out)
}

// archive writes a directory as a tar; WalkDir visits files in the order of their names.
func archive(w io.Writer, root string) error {
	t := tar.NewWriter(w)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: epoch,
			Format: tar.FormatUSTAR}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err = t.Write(content)
		return err
	})
	return errors.Join(err, t.Close())
}
