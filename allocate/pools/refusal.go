package pools

import "fmt"

// Reason is why a Service has no address, lacks one, or has another than before. Events and
// conditions carry it.
type Reason string

// Reasons.
const (
	// NoPool: no pool admits the Service without being named by it.
	NoPool Reason = "NoPool"
	// PoolEmpty: the pools that admit the Service have no free address.
	PoolEmpty Reason = "PoolEmpty"
	// UnknownPool: no pool has the name that the Service asks for.
	UnknownPool Reason = "UnknownPool"
	// PoolInvalid: the pool that the Service asks for, or may have its address from, cannot be
	// read.
	PoolInvalid Reason = "PoolInvalid"
	// PoolNotAllowed: the pool that the Service asks for, or has its address from, does not admit
	// it.
	PoolNotAllowed Reason = "PoolNotAllowed"
	// AddressTaken: another Service has the address, and the two do not share.
	AddressTaken Reason = "AddressTaken"
	// BadSharingKey: the other Service on the address has another sharing key, sends to other pods
	// with externalTrafficPolicy Local, or shares only within its namespace.
	BadSharingKey Reason = "BadSharingKey"
	// PortTaken: another Service that shares the address has one of the ports.
	PortTaken Reason = "PortTaken"
	// OutsidePools: no pool has the address, or no pool has all of the addresses.
	OutsidePools Reason = "OutsidePools"
	// BadWish: the requested addresses cannot be parsed, or contradict each other or the families.
	BadWish Reason = "BadWish"
	// NotDualStack: the Service requires two families and has ClusterIPs of one.
	NotDualStack Reason = "NotDualStack"
	// WrongFamily: the status lists addresses of families that the Service does not have.
	WrongFamily Reason = "WrongFamily"
)

// Refusal is the reason that a Service's request is not met.
type Refusal struct {
	Reason  Reason
	Message string
}

func (r *Refusal) Error() string { return string(r.Reason) + ": " + r.Message }

func refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
