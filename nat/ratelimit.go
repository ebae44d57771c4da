package nat

// Default rate and burst of our own ICMP errors: what Linux allows itself
// (net.ipv4.icmp_msgs_per_sec, net.ipv4.icmp_msgs_burst).
const (
	DefaultICMPRate  = 1000
	DefaultICMPBurst = 50
)

// RateLimit is a token bucket, written as the one number that a token bucket is:
// the time at which it will be full again (generic cell rate algorithm, ITU-T I.371).
// The zero value allows nothing. It belongs to one worker.
type RateLimit struct {
	costNanos  uint64 // one token
	depthNanos uint64 // all tokens but one
	fullAt     uint64
}

// NewRateLimit returns a full bucket of burst tokens that gains perSecond tokens
// a second. It allows nothing if either is not positive.
func NewRateLimit(perSecond, burst int) RateLimit {
	if perSecond <= 0 || burst <= 0 {
		return RateLimit{}
	}
	cost := max(uint64(1e9)/uint64(perSecond), 1)
	return RateLimit{costNanos: cost, depthNanos: cost * uint64(burst-1)}
}

// RateLimits is a fixed number of token buckets of one rate. Whoever is limited takes the bucket of
// a hash, which should be keyed, or somebody could choose to share another's. Those who share one
// have the rate together. It belongs to one worker.
type RateLimits struct {
	limit  RateLimit // its fullAt is the bucket's in use
	fullAt [limitBuckets]uint64
}

// limitBuckets is a power of two: 8 KiB of them, enough that hardly two of those who are limited at
// one time share one.
const limitBuckets = 1024

// NewRateLimits returns full buckets, each as NewRateLimit returns one.
func NewRateLimits(perSecond, burst int) *RateLimits {
	return &RateLimits{limit: NewRateLimit(perSecond, burst)}
}

// Allow is RateLimit.Allow of the bucket of a hash.
func (r *RateLimits) Allow(hash, now uint64) bool {
	bucket := &r.fullAt[hash%limitBuckets]
	r.limit.fullAt = *bucket
	ok := r.limit.Allow(now)
	*bucket = r.limit.fullAt
	return ok
}

// siteShares is how many sites that each take all they may exhaust a FairRateLimit.
const siteShares = 16

// FairRateLimit is a token bucket that one site cannot exhaust. The upper half of its tokens is for
// all. From the lower half a site gets at most the rate divided by siteShares. So sites that ask
// for more share what is left of the rate, and all others get their answers. It belongs to one
// worker.
type FairRateLimit struct {
	all   RateLimit
	sites *RateLimits
}

// NewFairRateLimit returns a full bucket, as NewRateLimit does.
func NewFairRateLimit(perSecond, burst int) FairRateLimit {
	return FairRateLimit{
		NewRateLimit(perSecond, burst), NewRateLimits(max(1, perSecond/siteShares), max(1, burst/siteShares)),
	}
}

// Allow is RateLimit.Allow for a site, by its hash (RateLimits).
func (f *FairRateLimit) Allow(site, now uint64) bool {
	taken := max(f.all.fullAt, now) - now
	if taken > f.all.depthNanos/2 && !f.sites.Allow(site, now) {
		return false
	}
	return f.all.Allow(now)
}

// Allow takes a token if there is one. now is in nanoseconds; a clock that stands
// still or runs backwards gives no tokens.
func (r *RateLimit) Allow(now uint64) bool {
	if r.costNanos == 0 {
		return false
	}
	fullAt := max(r.fullAt, now)
	if fullAt-now > r.depthNanos {
		return false
	}
	r.fullAt = fullAt + r.costNanos
	return true
}
