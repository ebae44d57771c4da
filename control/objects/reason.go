package objects

// Reason is one word for what kind of thing is wrong, as Kubernetes Events have it:
// for programs, as the Message is for people.
type Reason string

const (
	// ReasonFrontendConflict: another, older Service has the frontend.
	ReasonFrontendConflict Reason = "FrontendConflict"
	// ReasonPortClash: the frontend would take replies to our own source ports.
	ReasonPortClash Reason = "PortClash"
	// ReasonAddressNotAllowed: the operator does not let Services have the address.
	ReasonAddressNotAllowed Reason = "AddressNotAllowed"
	// ReasonNoRoom: older Services use all of a shared table.
	ReasonNoRoom Reason = "NoRoom"
	// ReasonInvalidObject: no API server would have taken this version of the object.
	ReasonInvalidObject Reason = "InvalidObject"
	// ReasonDuplicate: the object is also read at another place, and that one is used.
	ReasonDuplicate Reason = "DuplicateObject"
	// ReasonEndpointsHeld: endpoints that vanished are served for a time.
	ReasonEndpointsHeld Reason = "EndpointsHeld"
	// ReasonFlowsLost: a start of the gateway found flows that it could not take over.
	ReasonFlowsLost Reason = "FlowsLost"
	// ReasonNotServed: any other that is Refused.
	ReasonNotServed Reason = "NotServed"
	// ReasonServedDifferently: any other Warning.
	ReasonServedDifferently Reason = "ServedDifferently"
)

// Why returns the Reason, or the one that follows from the Severity.
func (p Problem) Why() Reason {
	switch {
	case p.Reason != "":
		return p.Reason
	case p.Severity == Warning:
		return ReasonServedDifferently
	}
	return ReasonNotServed
}
