// Package wording makes parts of messages: lists of numbers, and the known name that is nearest to
// a misspelt one.
package wording

import (
	"strconv"
	"strings"
)

// Numbers returns the numbers of a list, separated by separator.
func Numbers(list []int, separator string) string {
	text := make([]string, len(list))
	for i, n := range list {
		text[i] = strconv.Itoa(n)
	}
	return strings.Join(text, separator)
}
