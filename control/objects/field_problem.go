package objects

import "fmt"

// FieldProblem is a Problem of which neither the object nor its Source is known yet.
type FieldProblem struct {
	Field, Message string
	Severity       Severity
}

func refuse(field, format string, args ...any) FieldProblem {
	return FieldProblem{field, fmt.Sprintf(format, args...), Refused}
}

// MaxFieldProblems bounds the problems reported for one version of an object.
const MaxFieldProblems = 20

// LimitProblems drops what is beyond MaxFieldProblems, and adds a problem with their number.
func LimitProblems(problems []FieldProblem) []FieldProblem {
	if over := len(problems) - MaxFieldProblems; over > 0 {
		problems = append(problems[:MaxFieldProblems:MaxFieldProblems],
			FieldProblem{"", fmt.Sprintf("%d more problems", over), Refused})
	}
	return problems
}

// Problem returns f as a problem of the object.
func (f FieldProblem) Problem(id ObjectID) Problem {
	return Problem{Object: id, Field: f.Field, Message: f.Message, Severity: f.Severity}
}
