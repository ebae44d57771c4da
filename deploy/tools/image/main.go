// Command image puts the gateway's binary and other programs into a container image: one layer with
// the programs in /bin and licences in /licenses, built without a daemon and without a base image.
// The same binaries always give the same digest.
//
//	go run ./image -o sluice-image.tar -version v1 amd64=bin/sluice,bin/sluice-controller
//
// The file is an OCI image layout in a tar (OCI image specification, image-layout.md).
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"sluice.dev/sluice/deploy/tools/licenses"
)

func main() {
	out := flag.String("o", "sluice-image.tar", "file to write")
	version := flag.String("version", "unknown", "label org.opencontainers.image.version, and tag")
	revision := flag.String("revision", "", "label org.opencontainers.image.revision")
	tree := flag.String("tree", "../..", "root of the repository from which the binaries were built")
	flag.Parse()
	digest, err := run(*tree, *out, *version, *revision, flag.Args())
	if err != nil {
		log.Fatal(err)
	}
	path, err := filepath.Abs(*out)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s  %s  (sluice:%s; another tag: make image VERSION=...)\n", digest, path, *version)
}

// run writes an image and returns its digest. Each argument is arch=path,path,...; the image starts
// the first program by default.
func run(tree, out, version, revision string, args []string) (string, error) {
	if len(args) == 0 {
		return "", fmt.Errorf("no binaries: name them as amd64=bin/sluice")
	}
	labels := map[string]string{
		"org.opencontainers.image.title":    "sluice",
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.url":      "https://sluice.dev",
		"org.opencontainers.image.version":  version,
	}
	if revision != "" {
		labels["org.opencontainers.image.revision"] = revision
	}
	license, err := os.ReadFile(filepath.Join(tree, "LICENSE"))
	if err != nil {
		return "", err
	}
	var binaries []binary
	for _, arg := range args {
		arch, list, ok := strings.Cut(arg, "=")
		if !ok {
			return "", fmt.Errorf("%q is no binary, name it as amd64=bin/sluice", arg)
		}
		b := binary{arch: arch}
		var contents [][]byte
		for i, path := range strings.Split(list, ",") {
			content, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			if contents = append(contents, content); i == 0 {
				b.content = content
			} else {
				b.others = append(b.others, file{filepath.Base(path), content})
			}
		}
		if err := b.check(); err != nil {
			return "", err
		}
		others, err := licenses.Of(tree, contents...)
		if err != nil {
			return "", fmt.Errorf("%s: licences: %w", arch, err)
		}
		b.licenses = []file{{"LICENSE", license}, {licenses.FileName, others}}
		binaries = append(binaries, b)
	}
	index, err := build(binaries, labels)
	if err != nil {
		return "", err
	}
	digest, err := index.Digest()
	if err != nil {
		return "", err
	}
	return digest.String(), write(out, index, "sluice:"+version)
}
