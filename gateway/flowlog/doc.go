// Package flowlog writes the flow log: a line of JSON for each flow that begins or ends. Find
// searches the log for the client that had a source address and port at a time (RFC 6888 section 4,
// RFC 8158).
//
//	worker ─► ring ─┐         names of Services, wall clock
//	worker ─► ring ─┴─► Log.Run ◄───────┘
//	reader ─► ring ─┘      │ each 10 ms
//	                       ▼
//	   flows-….jsonl.gz … flows-….jsonl   ─► Find
//
// The files are bounded in size and number. Lines that cannot be written are lost and counted: no
// worker waits for a disk. A process that is killed loses the lines of the last Interval.
package flowlog
