package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/osrg/gobgp/v4/api"

	"sluice.dev/sluice/announce/kinds"
)

// variant is a set of attributes per peer that several prefixes may have.
type variant struct {
	number uint32
	key    string
	policy *api.Policy
	paths  int // how many paths have it
}

func (v *variant) name() string      { return fmt.Sprintf("variant-%d", v.number) }
func (v *variant) community() string { return fmt.Sprintf("0:%d", v.number) }

// defaultLocalPref is the value that routers assume if local preference is missing.
const defaultLocalPref = 100

// maxVariants is the count of variant numbers.
const maxVariants = 1<<16 - 1

// keyOf returns a key of a route's attributes and next hops for all peers.
func (s *Speaker) keyOf(r *Route) string {
	var b strings.Builder
	fmt.Fprintf(&b, "IPv4: %v\n", r.Prefix.Addr().Is4()) // a statement applies to one family
	for _, name := range slices.Sorted(maps.Keys(r.To)) {
		session := s.sessions[name]
		if session == nil || !session.address.IsValid() {
			continue
		}
		hop, err := session.hop(r.Prefix.Addr().Is4())
		if err != nil {
			continue
		}
		a := r.To[name]
		fmt.Fprintf(&b, "%s %v %v %v %v %d %v %d %v\n", name, session.address, session.peer.MyASN, hop, a.Internal,
			a.LocalPref, a.Leaving, a.prepend(), a.Communities)
	}
	return b.String()
}

// sessionsKey returns a key that changes whenever keyOf changes for any route.
func (s *Speaker) sessionsKey() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.sessions)) {
		session := s.sessions[name]
		hop4, err4 := session.hop(true)
		hop6, err6 := session.hop(false)
		fmt.Fprintf(&b, "%s %v %v %v %v %v %v %v\n", name, session.address, session.peer.MyASN, hop4, err4, hop6,
			err6, session.notServed)
	}
	return b.String()
}

// newVariant adds a variant for a route, with its policy in GoBGP.
func (s *Speaker) newVariant(ctx context.Context, r *Route, key string) (*variant, error) {
	if len(s.variants) >= maxVariants {
		return nil, errors.New("too many different combinations of peers and attributes")
	}
	for s.next++; s.next == 0 || s.next > maxVariants || s.taken(s.next); s.next++ {
		if s.next > maxVariants {
			s.next = 0
		}
	}
	v := &variant{number: s.next, key: key}
	if err := s.server.AddDefinedSet(ctx, &api.AddDefinedSetRequest{DefinedSet: &api.DefinedSet{
		DefinedType: api.DefinedType_DEFINED_TYPE_COMMUNITY, Name: v.name(), List: []string{"^" + v.community() + "$"},
	}}); err != nil {
		return nil, err
	}
	v.policy = &api.Policy{Name: v.name()}
	for _, name := range slices.Sorted(maps.Keys(r.To)) {
		session := s.sessions[name]
		if session == nil || !session.address.IsValid() {
			continue
		}
		is4 := r.Prefix.Addr().Is4()
		hop, err := session.hop(is4)
		if err != nil {
			continue
		}
		v.policy.Statements = append(v.policy.Statements, statement(v, session.peer, is4, r.To[name], hop))
	}
	if err := s.server.AddPolicy(ctx, &api.AddPolicyRequest{Policy: v.policy}); err != nil {
		return nil, errors.Join(err, s.dropSet(ctx, v))
	}
	s.variants[key] = v
	return v, s.assign(ctx)
}

func (s *Speaker) taken(number uint32) bool {
	for _, v := range s.variants {
		if v.number == number {
			return true
		}
	}
	return false
}

// statement returns the policy statement for one peer.
func statement(v *variant, peer *kinds.Peer, is4 bool, a Attributes, hop netip.Addr) *api.Statement {
	st := &api.Statement{
		Name: v.name() + " " + peer.Name,
		Conditions: &api.Conditions{
			NeighborSet:  &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: neighbours(peer.Name)},
			CommunitySet: &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: v.name()},
			AfiSafiIn:    []*api.Family{families[is4]},
		},
		Actions: &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT},
	}
	var standard, large []string
	for _, c := range a.Communities {
		if c.Large {
			large = append(large, strings.TrimPrefix(c.String(), "large:"))
		} else {
			standard = append(standard, c.String())
		}
	}
	if len(standard) > 0 {
		st.Actions.Community = &api.CommunityAction{Type: api.CommunityAction_TYPE_REPLACE, Communities: standard}
	} else {
		st.Actions.Community = &api.CommunityAction{Type: api.CommunityAction_TYPE_REMOVE,
			Communities: []string{"^" + v.community() + "$"}}
	}
	if len(large) > 0 {
		st.Actions.LargeCommunity = &api.CommunityAction{Type: api.CommunityAction_TYPE_ADD, Communities: large}
	}
	if a.Internal && !a.Leaving { // the path itself has 0, which an action cannot set
		st.Actions.LocalPref = &api.LocalPrefAction{Value: cmp.Or(a.LocalPref, defaultLocalPref)}
	}
	switch n := a.prepend(); {
	case n > 0 && a.Internal:
		st.Actions.Med = &api.MedAction{Type: api.MedAction_TYPE_REPLACE, Value: int64(n)}
	case n > 0:
		st.Actions.AsPrepend = &api.AsPrependAction{Asn: peer.MyASN, Repeat: uint32(n)}
	}
	if hop.IsValid() {
		st.Actions.Nexthop = &api.NexthopAction{Address: hop.String()}
	}
	return st
}

// neighbours returns the name of the neighbour set with a peer's address.
func neighbours(peer string) string { return "peer " + peer }

// assign makes the policies of all variants the export policies.
func (s *Speaker) assign(ctx context.Context) error {
	a := &api.PolicyAssignment{Name: "global", Direction: api.PolicyDirection_POLICY_DIRECTION_EXPORT,
		DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT}
	for _, v := range s.variants {
		a.Policies = append(a.Policies, &api.Policy{Name: v.name()})
	}
	return s.server.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: a})
}

// dropVariants removes variants without paths.
func (s *Speaker) dropVariants(ctx context.Context) error {
	var old []*variant
	for key, v := range s.variants {
		if v.paths == 0 {
			old = append(old, v)
			delete(s.variants, key)
		}
	}
	if len(old) == 0 {
		return nil
	}
	errs := []error{s.assign(ctx)}
	for _, v := range old {
		errs = append(errs, s.server.DeletePolicy(ctx, &api.DeletePolicyRequest{Policy: &api.Policy{Name: v.name()},
			All: true}),
			s.dropSet(ctx, v))
	}
	return errors.Join(errs...)
}

// dropSet removes the community set of a variant.
func (s *Speaker) dropSet(ctx context.Context, v *variant) error {
	return s.server.DeleteDefinedSet(ctx, &api.DeleteDefinedSetRequest{All: true, DefinedSet: &api.DefinedSet{
		DefinedType: api.DefinedType_DEFINED_TYPE_COMMUNITY, Name: v.name()}})
}
