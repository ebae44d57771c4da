package config

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	oneRingSize = "is now tuning.ringSize, the size of all four rings of a socket"
	// ofProfile is of timeouts: the constants are flowtable.DefaultTimeouts and RFCTimeouts.
	ofProfile = "is now a constant of flows.profile, default: %s, rfc: %s, because "
)

// moved maps each field of version 0.0 that this version does not have to its present name, or to
// the constant or derived value that replaces it and the reason. A file that has such a field is
// refused with this text.
var moved = map[string]string{
	"frames.size":      "is now tuning.frameSize",
	"frames.perQueue":  "is now derived: two frames for each descriptor of tuning.ringSize",
	"rings.rx":         oneRingSize,
	"rings.tx":         oneRingSize,
	"rings.fill":       oneRingSize,
	"rings.completion": oneRingSize,

	"workerNice":            "is now tuning.workerNice",
	"sockets.spin":          "is now tuning.spin; waiting chooses it",
	"sockets.spinAsWorked":  "is now derived: true on CPUs where packets arrive, and with waiting: shared",
	"sockets.coalesce":      "is now tuning.coalesce; waiting chooses it",
	"sockets.sleep":         "is now tuning.sleep",
	"proxy.affinityClients": "is now tuning.affinityClients",
	"heartbeat.passAfter":   "is now tuning.passAfter",
	"fragments.contexts":    "is now tuning.fragments",
	"fragments.held":        "is now derived: a quarter of tuning.fragments, at most tuning.ringSize and 4096",
	"fragments.timeout":     "is now a constant, 1s, because a sender sends all fragments of a datagram at once",
	"icmp.ratePerSecond":    "is now tuning.icmpRate",
	"icmp.burst":            "is now derived: a twentieth of tuning.icmpRate, as in the kernel",

	"kubernetes.hold": "is now kubernetes.staleEndpointTimeout",

	"statusSocket":     "is now derived: status.sock in stateDir",
	"hostLink.enabled": "is now derived: true unless hostLink.addresses is []",
	"hostLink.name":    "is now tuning.hostLinkName, with 0 behind it",
	"hostLink.peer":    "is now tuning.hostLinkName, with 1 behind it",
	"hostLink.procSys": "is now a constant, /proc/sys, or /host/proc/sys where that is read-only, " +
		"because that is where the chart mounts it",

	"flows.halfOpenShare": "is now a constant, 0.125, " +
		"because a larger table (flows.ipv4, flows.ipv6) has room for more of them",
	"proxy.retryOther": "is now a constant, true, because a client whose backend does not answer is lost otherwise",

	"flows.timeouts.timeWaitBackend": "is now tuning.timeWaitBackend",
	"flows.timeouts.synSent":         fmt.Sprintf(ofProfile, "10s", "4m") + "it bounds what a flood leaves behind",
	"flows.timeouts.synReceived":     fmt.Sprintf(ofProfile, "30s", "4m") + "it bounds what a flood leaves behind",
	"flows.timeouts.lastAck":         fmt.Sprintf(ofProfile, "30s", "4m") + "only repetitions of a FIN are waited for",
	"flows.timeouts.timeWaitClient": fmt.Sprintf(ofProfile, "5s", "4m") +
		"only repetitions of the last ACK are waited for",
	"flows.timeouts.reset": fmt.Sprintf(ofProfile, "10s", "4m") + "nothing is expected after it",
	"flows.timeouts.resetEstablished": fmt.Sprintf(ofProfile, "4m", "4m") +
		"RFC 7857 says it; a forged RST must not end a flow",
	"flows.timeouts.icmp": fmt.Sprintf(ofProfile, "1m", "1m") + "RFC 5508 says it",
	"flows.timeouts.udpIdle": fmt.Sprintf(ofProfile, "2m", "2m") +
		"it counts only when the table is full: raise flows.ipv4 or flows.ipv6",
}

// movedFrom lists the names that a group of version 0.0 had and that are in moved.
func movedFrom(group string) (names []string) {
	for path := range moved {
		if name, ok := strings.CutPrefix(path, group+"."); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// unknown refuses a field that its mapping does not have.
func (d *decoder) unknown(path string, key, value *yaml.Node, known []string) {
	if text, ok := moved[path]; ok {
		d.fail(path, key.Line, "%s", text)
		return
	}
	names := movedFrom(path)
	if len(names) == 0 {
		d.fail(path, key.Line, "is no known field, %s", suggest(key.Value, known))
		return
	}
	if value.Kind != yaml.MappingNode || len(value.Content) == 0 {
		texts := make([]string, len(names))
		for i, name := range names {
			texts[i] = fmt.Sprintf("%s %s", name, moved[join(path, name)])
		}
		d.fail(path, key.Line, "is no group of fields any more: %s", strings.Join(texts, "; "))
		return
	}
	for i := 0; i+1 < len(value.Content); i += 2 {
		name := value.Content[i]
		at := join(path, name.Value)
		if text, ok := moved[at]; ok {
			d.fail(at, name.Line, "%s", text)
		} else {
			d.fail(at, name.Line, "is no known field, and %s is no group of fields any more", path)
		}
	}
}
