// Package docs has the pages that programs show.
package docs

import _ "embed" // the page

// Counters is the page about counters. Its first table has the reasons for dropping a packet, with
// what each means and what to do.
//
//go:embed counters.md
var Counters string
