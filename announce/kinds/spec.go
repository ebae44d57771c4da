package kinds

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PeerSpec is the specification of a BGPPeer (sluice.dev/v1alpha1, and metallb.io/v1beta2).
type PeerSpec struct {
	// MyASN is this side's AS number, PeerASN the router's. Equal ones are iBGP.
	MyASN   uint32 `json:"myASN"`
	PeerASN uint32 `json:"peerASN,omitempty"`
	// PeerAddress is the router's address. Without it, Interface names the link of the router
	// (unnumbered).
	PeerAddress string `json:"peerAddress,omitempty"`
	Interface   string `json:"interface,omitempty"`
	// SourceAddress is the local address of the session; empty: chosen by the route to the router.
	SourceAddress string `json:"sourceAddress,omitempty"`
	PeerPort      uint16 `json:"peerPort,omitempty"` // 0 is 179
	// HoldTime and KeepaliveTime default to the values of RFC 4271, section 10: 90 s, and a third
	// of HoldTime.
	HoldTime      *metav1.Duration `json:"holdTime,omitempty"`
	KeepaliveTime *metav1.Duration `json:"keepaliveTime,omitempty"`
	// ConnectTime is the pause after a failed attempt to connect.
	ConnectTime *metav1.Duration `json:"connectTime,omitempty"`
	RouterID    string           `json:"routerID,omitempty"`
	// NodeSelectors: one must match the node, unless the list is empty.
	NodeSelectors []metav1.LabelSelector `json:"nodeSelectors,omitempty"`
	// Password is the TCP MD5 key (RFC 2385). PasswordSecret names a Secret of type basic-auth
	// instead.
	Password              string                 `json:"password,omitempty"`
	PasswordSecret        corev1.SecretReference `json:"passwordSecret,omitzero"`
	BFDProfile            string                 `json:"bfdProfile,omitempty"`
	EnableGracefulRestart bool                   `json:"enableGracefulRestart,omitempty"`
	EBGPMultiHop          bool                   `json:"ebgpMultiHop,omitempty"`
	// DualStackAddressFamily: the session carries both families, not only the one of its addresses.
	DualStackAddressFamily bool `json:"dualStackAddressFamily,omitempty"`
}

// AdvertisementSpec is the specification of a BGPAdvertisement (metallb.io/v1beta1).
type AdvertisementSpec struct {
	// AggregationLength and AggregationLengthV6 are the lengths of announced prefixes; nil is 32
	// and 128.
	AggregationLength   *int32 `json:"aggregationLength,omitempty"`
	AggregationLengthV6 *int32 `json:"aggregationLengthV6,omitempty"`
	// LocalPref is sent to peers of the same AS; 0: none, which routers treat as 100.
	LocalPref uint32 `json:"localPref,omitempty"`
	// Communities have a form such as 64500:7 or large:64500:1:2, or are names in a Community
	// object.
	Communities []string `json:"communities,omitempty"`
	SelectionSpec
	Peers []string `json:"peers,omitempty"` // by name; none: all
}

// SelectionSpec has the fields that both kinds of advertisements share.
type SelectionSpec struct {
	// IPAddressPools and IPAddressPoolSelectors select pools by name and by labels. Neither: all
	// pools.
	IPAddressPools         []string               `json:"ipAddressPools,omitempty"`
	IPAddressPoolSelectors []metav1.LabelSelector `json:"ipAddressPoolSelectors,omitempty"`
	NodeSelectors          []metav1.LabelSelector `json:"nodeSelectors,omitempty"`
	ServiceSelectors       []metav1.LabelSelector `json:"serviceSelectors,omitempty"`
}

// L2AdvertisementSpec is the specification of an L2Advertisement (metallb.io/v1beta1).
type L2AdvertisementSpec struct {
	SelectionSpec
	Interfaces []string `json:"interfaces,omitempty"`
}

// BFDProfileSpec is the specification of a BFDProfile (metallb.io/v1beta1). Intervals are in
// milliseconds.
type BFDProfileSpec struct {
	ReceiveInterval  *uint32 `json:"receiveInterval,omitempty"`
	TransmitInterval *uint32 `json:"transmitInterval,omitempty"`
	DetectMultiplier *uint32 `json:"detectMultiplier,omitempty"`
}

// CommunitySpec is the specification of a Community (metallb.io/v1beta1): names for communities.
type CommunitySpec struct {
	Communities []CommunityAlias `json:"communities,omitempty"`
}

// CommunityAlias is a name for a community.
type CommunityAlias struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// known are the fields of each kind that Sluice reads. pools.Unread has the ones of pools.
var known = map[string][]string{
	"BGPPeer": {"myASN", "peerASN", "peerAddress", "interface", "sourceAddress", "peerPort", "holdTime",
		"keepaliveTime",
		"connectTime", "routerID", "nodeSelectors", "password", "passwordSecret", "bfdProfile", "enableGracefulRestart",
		"ebgpMultiHop", "dualStackAddressFamily"},
	"BGPAdvertisement": {"aggregationLength", "aggregationLengthV6", "localPref", "communities", "ipAddressPools",
		"ipAddressPoolSelectors", "nodeSelectors", "serviceSelectors", "peers"},
	"L2Advertisement": {"ipAddressPools", "ipAddressPoolSelectors", "nodeSelectors", "serviceSelectors",
		"interfaces"},
	"BFDProfile": {"receiveInterval", "transmitInterval", "detectMultiplier"},
	"Community":  {"communities"},
}
