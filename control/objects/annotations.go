package objects

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/wording"
)

// annotationPrefix begins the keys of the annotations that are read.
const annotationPrefix = "sluice.dev/"

// The annotations that are read of a Service and of an EndpointSlice. Of other kinds of objects
// none is read.
var (
	serviceAnnotations = append([]string{annotationScheduler, annotationWeights, annotationCheck,
		annotationProxyProtocol, annotationForwarding},
		limitAnnotations[:]...)
	sliceAnnotations = []string{annotationWeights}
)

// OwnAnnotation reports whether a key has the prefix of the annotations that are read, in upper or
// lower case: the API server takes both, and keys with another case are reported.
func OwnAnnotation(key string) bool {
	return len(key) >= len(annotationPrefix) && strings.EqualFold(key[:len(annotationPrefix)], annotationPrefix)
}

// unknownAnnotations returns a warning for each annotation with our prefix that objects of this
// kind do not have. An object can have thousands, so the number of warnings is bounded.
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

// aboutUnknown returns why an annotation is ignored, and which known one may be meant.
func aboutUnknown(key, kind string, known []string) string {
	if slices.Contains(serviceAnnotations, key) {
		return fmt.Sprintf("is not read of an %s; it is ignored", kind)
	}
	if best := wording.Nearest(key, known); best != "" {
		return fmt.Sprintf("is unknown, did you mean %s? It is ignored", best)
	}
	return fmt.Sprintf("is unknown, known for %ss are %s; it is ignored", kind, strings.Join(known, ", "))
}
