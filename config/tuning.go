package config

import "time"

// Tuning has settings that few installations need. defaults.yaml and docs/tuning.md describe the
// symptom for each field; without the symptom its default is right.
type Tuning struct {
	// RingSize is the size of each of the four rings of a socket, in descriptors.
	RingSize int `json:"ringSize"`
	// FrameSize is the size of a frame of the UMEM, in bytes.
	FrameSize FrameSize `json:"frameSize"`
	// Precedence decides whether workers may have a higher scheduling priority than other threads
	// of the machine.
	Precedence Precedence `json:"precedence"`
	// AffinityClients bounds the clients that are stored for sessionAffinity ClientIP.
	AffinityClients int `json:"affinityClients"`
	// LimitSources bounds the sources whose connections are counted for limits.
	LimitSources int `json:"limitSources"`
	// Fragments bounds the datagrams whose fragments are tracked, of all workers together.
	Fragments int `json:"fragments"`
	// ICMPRate bounds the ICMP errors that the gateway generates, per second, of all workers
	// together, separately for "too big", "time exceeded" and all others; and the RSTs, too.
	ICMPRate int `json:"icmpRate"`
	// PathMTUFloor is the lowest path MTU that is accepted from an ICMP error, in bytes.
	PathMTUFloor int `json:"pathMTUFloor"`
	// TimeWaitBackend is how long a flow that the backend closed first keeps its source port. Its
	// default depends on flows.profile.
	TimeWaitBackend Duration `json:"timeWaitBackend"`
	// PassAfter decides on Service packets while no worker runs: they are dropped while the last
	// heartbeat is younger than this (a restart is under way), and pass to the kernel when it is
	// older.
	PassAfter Duration `json:"passAfter" reload:"live"`
	// HostLinkName is the name of the two ends of the host link, without their digit.
	HostLinkName string `json:"hostLinkName"`
}

// Precedence decides whether workers may have a higher scheduling priority than other threads.
type Precedence string

const (
	// PrecedenceAuto: while workers have time to spare.
	PrecedenceAuto Precedence = "auto"
	// PrecedenceNone: workers have the priority of the process.
	PrecedenceNone Precedence = "none"
)

// HostLinkEnds returns the names of the host link's ends: the user-space end and the kernel's end.
func (t *Tuning) HostLinkEnds() (user, kernel string) {
	return t.HostLinkName + "0", t.HostLinkName + "1"
}

// FramesPerQueue returns the number of frames for each interface and queue: as many as the fill
// ring and the transmit ring hold together, so that both can be full.
func (t *Tuning) FramesPerQueue() int { return 2 * t.RingSize }

// maxHeldFragments bounds the fragments that a worker searches for expired ones.
const maxHeldFragments = 4096

// Bounds of a worker that no setting changes.
const (
	HeldPackets = 512 // that wait for next hops
	HeldPerHop  = 128
	// FragmentWait is how long a fragment waits for the first one of its datagram. A sender sends
	// all fragments at once; most receivers, too, give up a datagram whose fragments the network
	// delays by more.
	FragmentWait = time.Second
	OwnTTL       = 64 // of ICMP errors and echo replies, as Linux has it (net.ipv4.ip_default_ttl)
)

// HeldFragments returns the number of fragments of each worker that may wait for their first one:
// one for four tracked datagrams, and at most half of the frames of a queue, so that they do not
// starve the rings.
func (t *Tuning) HeldFragments() int {
	return min(t.Fragments/4, t.FramesPerQueue()/2, maxHeldFragments)
}

// ICMPBurst returns the number of ICMP errors that may be sent at once: the errors of 50 ms, the
// ratio of the kernel's net.ipv4.icmp_msgs_burst to its icmp_msgs_per_sec.
func (t *Tuning) ICMPBurst() int { return max(1, t.ICMPRate/20) }

// Bounds of the ring size.
const minRingSize, maxRingSize = 64, 1 << 15

func (k *check) tuning(c *Configuration) {
	t := &c.Tuning
	k.rule("tuning.ringSize", func(s *schema) {
		for n := minRingSize; n <= maxRingSize; n *= 2 {
			s.Enum = append(s.Enum, n)
		}
	})
	if n := t.RingSize; n < minRingSize || n > maxRingSize || n&(n-1) != 0 {
		k.fail("tuning.ringSize", "is %d, choose a power of two from %d to %d", n, minRingSize, maxRingSize)
	}
	k.rule("tuning.frameSize", func(s *schema) { // 2048 and its multiple 4096
		low, high := 2048, 4096
		s.Pattern, s.Minimum, s.Maximum, s.MultipleOf = "^(auto|2048|4096)$", &low, &high, low
	})
	if s := t.FrameSize; s != AutoFrameSize && s != 2048 && s != 4096 {
		k.fail("tuning.frameSize", "is %d, the kernel accepts frames of 2048 or 4096 bytes; auto chooses by interfaces",
			s)
	}
	oneOf(k, "tuning.precedence", t.Precedence, PrecedenceAuto, PrecedenceNone)
	k.between("tuning.affinityClients", t.AffinityClients, 1024, 1<<26)
	k.between("tuning.limitSources", t.LimitSources, 1024, 1<<26)
	k.between("tuning.fragments", t.Fragments, 0, 1<<20)
	k.between("tuning.icmpRate", t.ICMPRate, 0, 1_000_000)
	k.between("tuning.pathMTUFloor", t.PathMTUFloor, 68, 1280) // from RFC 791 and RFC 8200
	k.duration("tuning.timeWaitBackend", t.TimeWaitBackend, time.Second, maxTimeout)
	k.duration("tuning.passAfter", t.PassAfter, 3*time.Second, time.Hour)
}
