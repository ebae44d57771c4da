package nat

// RateLimit is a token bucket, stored as the time at which it will be full again (generic cell rate
// algorithm, ITU-T I.371). The zero value allows nothing. Only one worker may use it.
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

// RateLimits is a fixed number of token buckets of one rate. The hash of a source selects its
// bucket. The hash should be keyed, or an attacker could choose to share another's bucket. Sources
// that share a bucket share its rate. Only one worker may use it.
type RateLimits struct {
	limit  RateLimit // its fullAt is a copy of the selected bucket's
	fullAt [limitBuckets]uint64
}

// limitBuckets is a power of two: 8 KiB of buckets, so many that two sources that are limited at
// the same time rarely share one.
const limitBuckets = 1024

// NewRateLimits returns full buckets, each like the result of NewRateLimit.
func NewRateLimits(perSecond, burst int) *RateLimits {
	return &RateLimits{limit: NewRateLimit(perSecond, burst)}
}

// Allow is RateLimit.Allow for the bucket of a hash.
func (r *RateLimits) Allow(hash, now uint64) bool {
	bucket := &r.fullAt[hash%limitBuckets]
	r.limit.fullAt = *bucket
	ok := r.limit.Allow(now)
	*bucket = r.limit.fullAt
	return ok
}

// siteShares is the number of sites that together can exhaust a FairRateLimit, if each takes its
// maximum.
const siteShares = 16

// FairRateLimit is a token bucket that one site cannot exhaust. Any site may take the upper half of
// its tokens. From the lower half a site gets at most the rate divided by siteShares. So sites that
// need more share the rest of the rate, and all other sites get their answers. Only one worker may
// use it.
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

// Allow is RateLimit.Allow for a site, by its hash (RateLimits). now is in nanoseconds, of the
// clock of the other calls.
func (f *FairRateLimit) Allow(site, now uint64) bool {
	taken := max(f.all.fullAt, now) - now
	if taken > f.all.depthNanos/2 && !f.sites.Allow(site, now) {
		return false
	}
	return f.all.Allow(now)
}

// Allow takes a token if there is one. now is in nanoseconds; a clock that stands still or runs
// backwards adds no tokens.
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
