package config

import "time"

// Profile names a set of timeouts.
type Profile string

// The profiles.
const (
	// ProfileDefault deviates from RFC 5382, RFC 4787 and RFC 7857 where inbound
	// floods make it wise: flows that nobody answered and flows that are over go sooner.
	ProfileDefault Profile = "default"
	// ProfileRFC keeps to RFC 5382 REQ-5 (transitory 4 minutes, established 2 hours
	// 4 minutes), RFC 4787 REQ-5 (UDP 5 minutes) and RFC 5508 REQ-1 (ICMP 60 s).
	ProfileRFC Profile = "rfc"
)

// Timeouts says how long a flow lives without a packet, by state.
type Timeouts struct {
	SynSent          Duration `json:"synSent"`          // SYN seen
	SynReceived      Duration `json:"synReceived"`      // SYN and SYN-ACK seen
	Established      Duration `json:"established"`      // handshake complete
	FinWait          Duration `json:"finWait"`          // one FIN seen
	LastAck          Duration `json:"lastAck"`          // both FINs seen, the last ACK not yet
	TimeWaitClient   Duration `json:"timeWaitClient"`   // closed, the client's FIN came first
	TimeWaitBackend  Duration `json:"timeWaitBackend"`  // closed, the backend's FIN came first
	Reset            Duration `json:"reset"`            // refused, or an RST outside established
	ResetEstablished Duration `json:"resetEstablished"` // an RST while established; any later packet restores the flow
	UDPUnreplied     Duration `json:"udpUnreplied"`     // no reply, or nothing of the client after it
	UDPReplied       Duration `json:"udpReplied"`       // the client spoke after a reply
	ICMP             Duration `json:"icmp"`             // echo request and reply
	// UDPIdle ends nothing: a replied UDP flow that is idle for longer may be shed
	// when the table is full.
	UDPIdle Duration `json:"udpIdle"`
}

// TimeoutsOf returns a profile's timeouts.
func TimeoutsOf(p Profile) Timeouts {
	s := func(seconds int) Duration { return Duration(time.Duration(seconds) * time.Second) }
	if p == ProfileRFC {
		return Timeouts{
			SynSent: s(240), SynReceived: s(240), Established: s(7440), FinWait: s(240), LastAck: s(240),
			TimeWaitClient: s(240), TimeWaitBackend: s(240), Reset: s(240), ResetEstablished: s(240),
			UDPUnreplied: s(300), UDPReplied: s(300), ICMP: s(60), UDPIdle: s(120),
		}
	}
	return Timeouts{
		SynSent: s(10), SynReceived: s(30), Established: s(7440), FinWait: s(300), LastAck: s(30),
		TimeWaitClient: s(5), TimeWaitBackend: s(60), Reset: s(10), ResetEstablished: s(240),
		UDPUnreplied: s(30), UDPReplied: s(300), ICMP: s(60), UDPIdle: s(120),
	}
}
