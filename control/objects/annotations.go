package objects

import (
	"fmt"
	"slices"
	"strings"
)

// annotationPrefix begins the keys of the annotations that are read.
const annotationPrefix = "sluice.dev/"

// The annotations that are read of a Service and of an EndpointSlice. Of other kinds of objects
// none is read.
var (
	serviceAnnotations = append([]string{annotationScheduler, annotationWeights, annotationCheck},
		limitAnnotations[:]...)
	sliceAnnotations = []string{annotationWeights}
)

// OwnAnnotation reports whether a key has the prefix of the annotations that are read, in upper or
// lower case: the API server takes both, and keys with another case are reported.
func OwnAnnotation(key string) bool {
	return len(key) >= len(annotationPrefix) && strings.EqualFold(key[:len(annotationPrefix)], annotationPrefix)
}

// unknownAnnotations returns a warning for each annotation with the prefix that is not read of this
// kind of object. An object can have thousands, so the number of warnings is bounded.
func unknownAnnotations(annotations map[string]string, kind string, known []string) (problems []FieldProblem) {
	var keys []string
	for key := range annotations {
		if OwnAnnotation(key) && !slices.Contains(known, key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for i, key := range keys {
		if i == MaxFieldProblems {
			return append(problems, warn("metadata.annotations", "%d more are unknown; they are ignored", len(keys)-i))
		}
		problems = append(problems, FieldProblem{
			"metadata.annotations[" + Clip(key) + "]", aboutUnknown(key, kind, known), Warning})
	}
	return problems
}

// aboutUnknown says why an annotation is ignored, and which may be meant.
func aboutUnknown(key, kind string, known []string) string {
	if slices.Contains(serviceAnnotations, key) {
		return fmt.Sprintf("is not read of an %s; it is ignored", kind)
	}
	if best := Nearest(key, known); best != "" {
		return fmt.Sprintf("is unknown, did you mean %s? It is ignored", best)
	}
	return "is unknown; it is ignored"
}

// Nearest returns the known name within two edits of name, in upper or lower case, that takes the
// fewest; "" if there is none.
func Nearest(name string, known []string) string {
	best, bestDistance := "", 3
	for _, k := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// distance is the Levenshtein distance, for names of bounded length.
func distance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal, row[j] = row[j], min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
