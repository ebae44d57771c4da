package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// proxyPackages hold what kube-proxy runs in mode ipvs, and the libraries of theirs that a small
// system may lack.
var proxyPackages = []string{"ipset", "libipset13", "iptables", "libxtables12", "libnftnl11", "libmnl0"}

// FetchProxyTools returns ipset and iptables, for ProxyConfig.Runtime. They come as FetchRuntime
// says, once.
func FetchProxyTools(ctx context.Context, progress io.Writer) (*Runtime, error) {
	const what = "ipset and iptables"
	dir, err := packagesDir(proxyPackages)
	if err != nil {
		return nil, err
	}
	return &Runtime{Dir: dir}, makeOnce(ctx, dir, func(next string) error {
		fmt.Fprintf(progress, "cluster: downloading %s into %s, once\n", what, dir)
		err := download(ctx, next, proxyPackages, false)
		if err == nil {
			err = linkIPTables(filepath.Join(next, "usr/sbin"))
		}
		if err != nil {
			return fmt.Errorf("cluster: fetch %s: %w", what, err)
		}
		return nil
	})
}

// linkIPTables gives the program that speaks nf_tables the names that Debian has
// update-alternatives give it.
func linkIPTables(sbin string) error {
	var errs []error
	for _, family := range [...]string{"iptables", "ip6tables"} {
		for _, what := range [...]string{"", "-save", "-restore"} {
			errs = append(errs, os.Symlink("xtables-nft-multi", filepath.Join(sbin, family+what)))
		}
	}
	return errors.Join(errs...)
}
