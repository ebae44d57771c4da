package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/package-url/packageurl-go"
)

// image is a container image: an index of images, each with the binaries of an architecture.
type image struct {
	component    cdx.Component
	applications []*application
}

// withImage calls f with an archive's index of images, and its digest.
func withImage(file string, f func(v1.ImageIndex, v1.Hash) error) (err error) {
	dir, err := os.MkdirTemp("", name+"-image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := unpack(file, dir); err != nil {
		return err
	}
	outer, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return err
	}
	top, err := outer.IndexManifest()
	if err != nil {
		return err
	}
	if len(top.Manifests) != 1 {
		return fmt.Errorf("%s holds %d images, want one", file, len(top.Manifests))
	}
	digest := top.Manifests[0].Digest
	index, err := outer.ImageIndex(digest)
	if err != nil {
		return err
	}
	return f(index, digest)
}

// readImage describes the image of an archive by its files.
func readImage(file, version string) (i *image, err error) {
	err = withImage(file, func(index v1.ImageIndex, digest v1.Hash) (err error) {
		i, err = describe(index, digest, version)
		return err
	})
	return i, err
}

func describe(index v1.ImageIndex, digest v1.Hash, version string) (*image, error) {
	url := packageurl.NewPackageURL(packageurl.TypeOCI, "", name, digest.String(),
		packageurl.QualifiersFromMap(map[string]string{"tag": version}), "")
	i := &image{component: component(cdx.ComponentTypeContainer, name, version, url)}
	i.component.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: digest.Hex}}
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, d := range m.Manifests {
		one, err := index.Image(d.Digest)
		if err != nil {
			return nil, err
		}
		list, err := programs(one, d.Platform.Architecture, version)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.Platform.Architecture, err)
		}
		i.applications = append(i.applications, list...)
	}
	return i, nil
}

// programs returns the files of an image other than licences. A file that is not a Go program would
// be missing in the SBOM, so it is an error.
func programs(one v1.Image, arch, version string) (list []*application, err error) {
	contents := mutate.Extract(one)
	defer contents.Close()
	for r := tar.NewReader(contents); ; {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF) && list == nil:
			return nil, errors.New("there is no file in it")
		case errors.Is(err, io.EOF):
			return list, nil
		case err != nil:
			return nil, err
		case h.Typeflag == tar.TypeDir || path.Dir(path.Clean(h.Name)) == "licenses":
			continue
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		a, err := newApplication(arch, version, content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", h.Name, err)
		}
		list = append(list, a)
	}
}

// unpack writes the files of a tar into a directory; no file can be outside of it.
func unpack(file, dir string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := errors.Join(
			root.MkdirAll(filepath.Dir(h.Name), 0o755), root.WriteFile(h.Name, content, 0o644),
		); err != nil {
			return err
		}
	}
}
