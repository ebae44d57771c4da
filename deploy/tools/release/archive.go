package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"helm.sh/helm/v3/pkg/chart/loader"
)

// file is a file of an archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

// writeArchive writes a gzipped tar of files in the order of their names, owned by root, all with
// the same time. The header of the gzip stream has no time and no name.
func writeArchive(out string, at time.Time, files []file) error {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	t := tar.NewWriter(z)
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	for _, f := range files {
		h := tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: at,
			Format: tar.FormatUSTAR,
		}
		if err := t.WriteHeader(&h); err != nil {
			return err
		}
		if _, err := t.Write(f.content); err != nil {
			return err
		}
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return err
	}
	return os.WriteFile(out, b.Bytes(), 0o644)
}

// writeChart archives a chart as `helm package` does, except for the times, which Helm takes from
// the clock. It loads the files of the directory that Helm's own rules (.helmignore) include.
func writeChart(out, dir string, at time.Time) error {
	c, err := loader.LoadDir(dir)
	if err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return err
	}
	var files []file
	for _, f := range c.Raw {
		files = append(files, file{path.Join(c.Name(), f.Name), 0o644, f.Data})
	}
	return writeArchive(out, at, files)
}

// writeSums writes SHA256SUMS of every other file of a directory, in the format of `sha256sum -c`.
func writeSums(dir string, out io.Writer) error {
	const sums = "SHA256SUMS"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, e := range entries {
		if e.Name() == sums {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(content), e.Name())
	}
	if err := os.WriteFile(filepath.Join(dir, sums), b.Bytes(), 0o644); err != nil {
		return err
	}
	_, err = out.Write(b.Bytes())
	return err
}
