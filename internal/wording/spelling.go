package wording

import "strings"

// Nearest returns the known name with the fewest edits from name, at most two, ignoring case; "" if
// there is none.
func Nearest(name string, known []string) string {
	best, bestDistance := "", 3
	for _, k := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// Suggest returns "; did you mean NAME?" with the Nearest name, to append to a message; "" if there
// is none.
func Suggest(name string, known []string) string {
	if best := Nearest(name, known); best != "" {
		return "; did you mean " + best + "?"
	}
	return ""
}

// distance returns the Levenshtein distance of two names. A name of more than 64 bytes has its
// length as distance.
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
