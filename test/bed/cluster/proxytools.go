package cluster

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"sluice.dev/sluice/test/bed/apt"
)

// proxyPackages hold what kube-proxy runs in mode ipvs, and the libraries of theirs that a small
// system may lack.
var proxyPackages = []string{"ipset", "libipset13", "iptables", "libxtables12", "libnftnl11", "libmnl0"}

// FetchProxyTools returns ipset and iptables, for ProxyConfig.Runtime. They come as FetchRuntime
// says, once.
func FetchProxyTools(ctx context.Context, progress io.Writer) (*Runtime, error) {
	dir, err := fetch(ctx, progress, "ipset and iptables", proxyPackages, func(a *apt.Apt, into string) error {
		if err := unpack(ctx, a, into, proxyPackages); err != nil {
			return err
		}
		return linkIPTables(filepath.Join(into, "usr/sbin"))
	})
	return &Runtime{Dir: dir}, err
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
