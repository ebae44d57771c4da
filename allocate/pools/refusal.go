package pools

import "fmt"

// Reason is why a Service has no address, or not all of them, or another than before. It is the
// reason of Events and conditions.
type Reason string

// Reasons.
const (
	// NoPool: there is no pool that such a Service may have an address from unless it asks for it.
	NoPool Reason = "NoPool"
	// PoolEmpty: the pools for the Service have no free address.
	PoolEmpty Reason = "PoolEmpty"
	// UnknownPool: no pool has the name that the Service asks for.
	UnknownPool Reason = "UnknownPool"
	// PoolInvalid: the pool that the Service asks for, or perhaps has its address from, cannot be
	// read.
	PoolInvalid Reason = "PoolInvalid"
	// PoolNotAllowed: the pool that the Service asks for, or that has its address, is for others.
	PoolNotAllowed Reason = "PoolNotAllowed"
	// AddressTaken: another Service has the address, and the two do not share.
	AddressTaken Reason = "AddressTaken"
	// BadSharingKey: the other Service on the address has another sharing key, or sends to other
	// pods with externalTrafficPolicy Local, or shares in its namespace only.
	BadSharingKey Reason = "BadSharingKey"
	// PortTaken: another Service that shares the address has one of the ports.
	PortTaken Reason = "PortTaken"
	// OutsidePools: no pool has the address, or no pool has all of them.
	OutsidePools Reason = "OutsidePools"
	// BadWish: what the Service asks for cannot be read, or contradicts itself or its families.
	BadWish Reason = "BadWish"
	// NotDualStack: the Service requires two families and has a ClusterIP of one.
	NotDualStack Reason = "NotDualStack"
	// WrongFamily: the status has addresses of other families than the Service.
	WrongFamily Reason = "WrongFamily"
)

// Refusal is why a Service does not get what it asks for.
type Refusal struct {
	Reason  Reason
	Message string
}

func (r *Refusal) Error() string { return string(r.Reason) + ": " + r.Message }

func refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
