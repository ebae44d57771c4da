package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	gcr "github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"helm.sh/helm/v3/pkg/registry"
)

// push uploads the image as REGISTRY/sluice:VERSION and the chart as
// REGISTRY/charts/sluice:VERSION, and prints both with their digests. It uses the credentials of
// `docker login`. It returns an error if a tag exists with another digest: a published version does
// not change.
func push(ctx context.Context, r release, where string, out io.Writer) error {
	to, err := gcr.NewTag(where+"/"+name+":"+r.version, gcr.StrictValidation)
	if err != nil {
		return fmt.Errorf("registry %q: %w", where, err)
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if err := withImage(r.path("-image.tar"), func(index v1.ImageIndex, digest v1.Hash) error {
		if there, err := remote.Head(to, options...); err == nil && there.Digest != digest {
			return fmt.Errorf("%s is published with digest %s, and this one is %s: release another version", to,
				there.Digest, digest)
		}
		if err := remote.WriteIndex(to, index, options...); err != nil {
			return err
		}
		_, err := fmt.Fprintf(out, "image %s@%s\n", to, digest)
		return err
	}); err != nil {
		return fmt.Errorf("push the image: %w", err)
	}
	digest, err := pushChart(r, where, to.RegistryStr())
	if err != nil {
		return fmt.Errorf("push the chart: %w", err)
	}
	_, err = fmt.Fprintf(out, "chart oci://%s/charts/%s:%s@%s\n", where, name, r.version, digest)
	return err
}

// pushChart uploads the chart's archive and returns the digest of its manifest.
func pushChart(r release, where, host string) (digest string, err error) {
	chart, err := os.ReadFile(r.path(".tgz"))
	if err != nil {
		return "", err
	}
	options := []registry.ClientOption{registry.ClientOptWriter(io.Discard)}
	if strings.HasPrefix(host, "127.0.0.1:") { // a test registry, without TLS
		options = append(options, registry.ClientOptPlainHTTP())
	}
	c, err := registry.NewClient(options...)
	if err != nil {
		return "", err
	}
	pushed, err := c.Push(chart, where+"/charts/"+name+":"+r.version,
		registry.PushOptCreationTime(r.time.Format("2006-01-02T15:04:05Z07:00")))
	if err != nil {
		return "", err
	}
	if pushed.Manifest.Digest == "" {
		return "", errors.New("the registry names no digest")
	}
	return pushed.Manifest.Digest, nil
}
