package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime/debug"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
	"github.com/package-url/packageurl-go"
)

// application is a binary, and the modules in its build info.
type application struct {
	component cdx.Component
	modules   []cdx.Component // in Go's order, the standard library first
}

// newApplication reads the build info of a binary.
func newApplication(arch, version string, content []byte) (*application, error) {
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if settings["GOARCH"] != arch {
		return nil, fmt.Errorf("the binary is for %q, not for %s", settings["GOARCH"], arch)
	}
	url := golang(info.Main.Path, "v"+version)
	url.Qualifiers = packageurl.QualifiersFromMap(map[string]string{"goos": settings["GOOS"], "goarch": arch})
	program := path.Base(info.Path)
	if program != name { // several programs of one module
		url.Subpath = "cmd/" + program
	}
	a := &application{component: component(cdx.ComponentTypeApplication, program, version, url)}
	a.component.Hashes = hash(content)
	a.component.Licenses = &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}
	a.modules = append(a.modules, library("std", strings.TrimPrefix(info.GoVersion, "go")))
	for _, m := range info.Deps {
		l, err := module(m)
		if err != nil {
			return nil, err
		}
		a.modules = append(a.modules, l)
	}
	return a, nil
}

// module is the component of a linked module: of a module that go.mod replaces, the replacement.
func module(m *debug.Module) (cdx.Component, error) {
	if m.Replace != nil {
		m = m.Replace
	}
	if m.Version == "" {
		return cdx.Component{}, fmt.Errorf("module %s has no version: a release replaces no module by a directory",
			m.Path)
	}
	return library(m.Path, m.Version), nil
}

func library(path, version string) cdx.Component {
	return component(cdx.ComponentTypeLibrary, path, version, golang(path, version))
}

// golang is the package URL of a Go module (purl specification, types/golang).
func golang(module, version string) *packageurl.PackageURL {
	namespace, base := path.Split(module)
	return packageurl.NewPackageURL(packageurl.TypeGolang, strings.TrimSuffix(namespace, "/"), base, version, nil, "")
}

func component(t cdx.ComponentType, name, version string, url *packageurl.PackageURL) cdx.Component {
	if err := url.Normalize(); err != nil {
		panic(fmt.Sprintf("release: no package URL for %s %s: %v: it has no name", name, version, err))
	}
	return cdx.Component{Type: t, BOMRef: url.ToString(), Name: name, Version: version, PackageURL: url.ToString()}
}

func hash(content []byte) *[]cdx.Hash {
	return &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sha256.Sum256(content))}}
}

// binaryBOM lists the modules of one binary.
func binaryBOM(r *release, a *application) *cdx.BOM {
	b := bom(r, a.component)
	b.add(a)
	return b.BOM
}

// imageBOM lists the binaries of an image, and their modules.
func imageBOM(r *release, i *image) *cdx.BOM {
	b := bom(r, i.component)
	var refs []string
	for _, a := range i.applications {
		*b.Components = append(*b.Components, a.component)
		refs = append(refs, a.component.BOMRef)
	}
	*b.Dependencies = append(*b.Dependencies, cdx.Dependency{Ref: i.component.BOMRef, Dependencies: &refs})
	for _, a := range i.applications {
		b.add(a)
	}
	return b.BOM
}

// draft is a BOM to which components are added, each once.
type draft struct {
	*cdx.BOM
	have map[string]bool
}

// bom starts the BOM of a component. Its serial number is derived from the component's package URL
// and hash, and its time is the commit's, so that repeated builds give the same BOM.
func bom(r *release, about cdx.Component) draft {
	b := cdx.NewBOM()
	seed := about.PackageURL
	if about.Hashes != nil {
		seed += " " + (*about.Hashes)[0].Value
	}
	b.SerialNumber = uuid.NewSHA1(uuid.NameSpaceURL, []byte(seed)).URN()
	about.Properties = &[]cdx.Property{{Name: "sluice.dev:commit", Value: r.revision}}
	b.Metadata = &cdx.Metadata{Timestamp: r.time.Format(time.RFC3339), Component: &about}
	b.Components, b.Dependencies = &[]cdx.Component{}, &[]cdx.Dependency{}
	return draft{b, map[string]bool{}}
}

// add adds the modules of a binary, as its dependencies. The build info does not contain the
// dependencies among them.
func (d *draft) add(a *application) {
	var refs []string
	for _, m := range a.modules {
		refs = append(refs, m.BOMRef)
		if !d.have[m.BOMRef] {
			d.have[m.BOMRef] = true
			*d.Components = append(*d.Components, m)
		}
	}
	*d.Dependencies = append(*d.Dependencies, cdx.Dependency{Ref: a.component.BOMRef, Dependencies: &refs})
}

// writeBOM writes CycloneDX 1.6 JSON, which more readers support than the latest version.
func writeBOM(out string, b *cdx.BOM) error {
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	encoder := cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true)
	return errors.Join(encoder.EncodeVersion(b, cdx.SpecVersion1_6), f.Close())
}
