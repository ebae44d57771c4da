package objects

import "fmt"

// Fault is a Problem before it is known where the object was read.
type Fault struct {
	Field, Message string
	Severity       Severity
}

func refuse(field, format string, args ...any) Fault {
	return Fault{field, fmt.Sprintf(format, args...), Refused}
}

// MaxFaults bounds what is said of one version of an object.
const MaxFaults = 20

// LimitFaults cuts off what is beyond MaxFaults, and says how many there were.
func LimitFaults(faults []Fault) []Fault {
	if over := len(faults) - MaxFaults; over > 0 {
		faults = append(faults[:MaxFaults:MaxFaults], Fault{"", fmt.Sprintf("%d more faults", over), Refused})
	}
	return faults
}

// Problem is the fault as one of the object.
func (f Fault) Problem(id ObjectID) Problem {
	return Problem{Object: id, Field: f.Field, Message: f.Message, Severity: f.Severity}
}
