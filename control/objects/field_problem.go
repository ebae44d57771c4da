package objects

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// FieldProblem is a Problem whose object and Source are not known yet.
type FieldProblem struct {
	Field, Message string
	Severity       Severity
}

func refuse(field, format string, args ...any) FieldProblem {
	return FieldProblem{field, fmt.Sprintf(format, clipped(args)...), Refused}
}

func warn(field, format string, args ...any) FieldProblem {
	return FieldProblem{field, fmt.Sprintf(format, clipped(args)...), Warning}
}

// MaxFieldProblems bounds the problems reported for one version of an object.
const MaxFieldProblems = 20

// Bounds of the parts of an object that a message repeats, in bytes. A field can have a megabyte;
// the longest name has 253 bytes (RFC 1123 subdomain).
const (
	maxQuoted = 80
	maxName   = 253
	maxError  = 512 // of a decoder
)

// Clip shortens the text of a field for a message.
func Clip(text string) string { return clip(text, maxQuoted) }

// ClipError shortens the message of a decoder, which may repeat a field.
func ClipError(text string) string { return clip(text, maxError) }

func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	end := most
	for end > most-utf8.UTFMax && !utf8.RuneStart(text[end]) {
		end--
	}
	return strings.Clone(text[:end]) + "..."
}

// clipped returns the arguments of a message with every text among them shortened.
func clipped(args []any) []any {
	args = slices.Clone(args)
	for i, a := range args {
		if v := reflect.ValueOf(a); v.Kind() == reflect.String {
			args[i] = Clip(v.String())
		}
	}
	return args
}

// LimitProblems drops the problems beyond MaxFieldProblems, and adds a problem with their number.
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
