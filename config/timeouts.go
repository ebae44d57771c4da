package config

import "time"

// Profile names a set of timeouts.
type Profile string

// The profiles.
const (
	// ProfileDefault deviates from RFC 5382, RFC 4787 and RFC 7857 where inbound floods require it:
	// unanswered and finished flows expire sooner.
	ProfileDefault Profile = "default"
	// ProfileRFC follows RFC 5382 REQ-5 (transitory 4 minutes, established 2 hours 4 minutes), RFC
	// 4787 REQ-5 (UDP 5 minutes) and RFC 5508 REQ-1 (ICMP 60 s).
	ProfileRFC Profile = "rfc"
)

// Resize decides, at a start with another table size, on the flows that do not fit in the new size.
type Resize string

const (
	// ResizeFit keeps the old size and all flows, so that a restart loses none by accident.
	ResizeFit Resize = "fit"
	// ResizeForce ends the flows that do not fit; established connections are moved first.
	ResizeForce Resize = "force"
)

// Timeouts are the times that a flow lives without a packet, by state. The times of other states
// are constants of the flow table, by profile (flowtable.Timeouts).
type Timeouts struct {
	Established  Duration `json:"established"`  // handshake complete
	FinWait      Duration `json:"finWait"`      // one FIN seen
	UDPUnreplied Duration `json:"udpUnreplied"` // no reply, or no packet of the client after it
	UDPReplied   Duration `json:"udpReplied"`   // the client sent a packet after a reply
}

// TimeoutsOf returns a profile's timeouts.
func TimeoutsOf(p Profile) Timeouts {
	s := func(seconds int) Duration { return Duration(time.Duration(seconds) * time.Second) }
	if p == ProfileRFC {
		return Timeouts{Established: s(7440), FinWait: s(240), UDPUnreplied: s(300), UDPReplied: s(300)}
	}
	return Timeouts{Established: s(7440), FinWait: s(300), UDPUnreplied: s(30), UDPReplied: s(300)}
}

// timeWaitBackendOf returns a profile's default of tuning.timeWaitBackend.
func timeWaitBackendOf(p Profile) Duration {
	if p == ProfileRFC {
		return Duration(4 * time.Minute)
	}
	return Duration(time.Minute)
}
