package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// binary is the gateway's program for one architecture (Go's name), with other programs beside it.
type binary struct {
	arch     string
	content  []byte
	others   []file // programs that are not started by default, by name
	licenses []file // licence texts
}

// file is a file of the image, by its path without the leading slash.
type file struct {
	name    string
	content []byte
}

// Path of the binary in the image; the directory is the whole PATH.
const (
	binDir  = "bin"
	binName = "sluice"
	// licenseDir is the directory in which image checkers look for licences.
	licenseDir = "licenses"
)

// epoch is the time of all files in the image, so that the image does not depend on the time of the
// build.
var epoch = time.Unix(0, 0).UTC()

// machines are the ELF names of Go's architectures.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// build makes an index with an image for each binary, in their order.
func build(binaries []binary, labels map[string]string) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, b := range binaries {
		image, err := b.image(labels)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: b.arch}},
		})
	}
	return index, nil
}

// check returns an error for a binary that cannot run in an image without other files: a binary for
// another machine, or one that needs a dynamic loader.
func (b binary) check() error {
	for _, o := range b.others {
		if err := checkContent(b.arch, o.content); err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
	}
	return checkContent(b.arch, b.content)
}

func checkContent(arch string, content []byte) error {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("%s: the file is no ELF binary: %w", arch, err)
	}
	defer f.Close()
	machine, known := machines[arch]
	if !known {
		return fmt.Errorf("%s: no such architecture here; choose amd64 or arm64", arch)
	}
	if f.Machine != machine {
		return fmt.Errorf("%s: the binary is for %s; build it with GOARCH=%s", arch, f.Machine, arch)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s: the binary is not static; build it with CGO_ENABLED=0", arch)
		}
	}
	return nil
}

// image is the container image with the binary as its entry point.
func (b binary) image(labels map[string]string) (v1.Image, error) {
	layer, err := b.layer()
	if err != nil {
		return nil, err
	}
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	if image, err = mutate.Append(image, mutate.Addendum{
		Layer: layer, MediaType: types.OCILayer,
		History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: "sluice.dev/sluice/deploy/tools/image"},
	}); err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, b.config(image, labels))
}

func (b binary) config(image v1.Image, labels map[string]string) *v1.ConfigFile {
	file, err := image.ConfigFile()
	if err != nil {
		panic("image: a configuration that was just made cannot be read: " + err.Error())
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", b.arch
	file.Created = v1.Time{Time: epoch}
	file.Config = v1.Config{
		User:       "0:0",
		Env:        []string{"PATH=/" + binDir},
		Entrypoint: []string{"/" + binDir + "/" + binName},
		Cmd:        []string{"help"},
		WorkingDir: "/",
		Labels:     labels,
		StopSignal: "SIGTERM",
	}
	return file
}

// layer is a tar with the binaries and the licences, owned by root, with time 0.
func (b binary) layer() (v1.Layer, error) {
	var t bytes.Buffer
	w := tar.NewWriter(&t)
	add := func(h tar.Header, content []byte) error {
		h.Size, h.ModTime, h.Format = int64(len(content)), epoch, tar.FormatUSTAR
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	err := errors.Join(
		add(tar.Header{Typeflag: tar.TypeDir, Name: binDir + "/", Mode: 0o755}, nil),
		add(tar.Header{Typeflag: tar.TypeReg, Name: binDir + "/" + binName, Mode: 0o555}, b.content),
	)
	for _, f := range b.others {
		h := tar.Header{Typeflag: tar.TypeReg, Name: binDir + "/" + f.name, Mode: 0o555}
		err = errors.Join(err, add(h, f.content))
	}
	err = errors.Join(err, add(tar.Header{Typeflag: tar.TypeDir, Name: licenseDir + "/", Mode: 0o755}, nil))
	for _, f := range b.licenses {
		h := tar.Header{Typeflag: tar.TypeReg, Name: licenseDir + "/" + f.name, Mode: 0o444}
		err = errors.Join(err, add(h, f.content))
	}
	if err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(t.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}
