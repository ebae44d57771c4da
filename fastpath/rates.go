package fastpath

import (
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
)

// rates limit the packets that a worker generates, and the path MTU announcements that it
// translates.
type rates struct {
	other    nat.FairRateLimit // of ICMP errors that have no limit of their own
	tooBig   nat.FairRateLimit // of nat.FragmentationNeeded
	expired  nat.FairRateLimit // of nat.TimeExceeded
	resets   nat.FairRateLimit
	pathMTUs *nat.RateLimits   // by site of clients
	key      flowtable.HashKey // of hashes of sites
}

// newRates returns the rates, each limited to perSecond and burst. The key must not be guessable.
func newRates(perSecond, burst int, key flowtable.HashKey) rates {
	return rates{
		other:    nat.NewFairRateLimit(perSecond, burst),
		tooBig:   nat.NewFairRateLimit(perSecond, burst),
		expired:  nat.NewFairRateLimit(perSecond, burst),
		resets:   nat.NewFairRateLimit(perSecond, burst),
		pathMTUs: nat.NewRateLimits(pathMTURate, pathMTUBurst),
		key:      key,
	}
}

// pathMTURate and pathMTUBurst limit the path MTU announcements that a worker translates from one
// site of clients (header.SitePrefix4), per second and at once. A backend keeps a path MTU for ten
// minutes (net.ipv4.route.mtu_expires), so a site needs about one announcement for each backend in
// that time. A burst has one for each segment that a sender has in flight.
const pathMTURate, pathMTUBurst = 20, 50

// of returns the rate limit of a kind of ICMP error. Any sender can cause "unreachable" errors
// without a flow, so they must not use up the rates of path MTU errors, which connections need, and
// of traceroute's answers.
func (r *rates) of(kind nat.ErrorKind) *nat.FairRateLimit {
	switch kind {
	case nat.FragmentationNeeded:
		return &r.tooBig
	case nat.TimeExceeded:
		return &r.expired
	}
	return &r.other
}

// site returns the hash of an address's site (header.SitePrefix4).
func (r *rates) site(a *header.Addr) uint64 {
	hi, lo := a.Prefix(header.SitePrefix4, header.SitePrefix6)
	return r.key.Words(hi, lo, 0)
}
