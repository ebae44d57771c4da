// Package replication joins a gateway's flow table and its workers to the streams of a group: it
// tells the group's Ledger of changes of its own flows, and keeps the copies of other gateways'
// flows in the table.
//
//	worker ── flowtable.Table.Changed, copies.Board ──► Flows ──► group.Ledger ──► session.Sender
//	       ◄── flowtable.Handle.Answer, Board ────────        ◄── group.Copies ◄── session.Receiver
//
// How to join it, once for each gateway:
//
//	f, err := replication.New(Config{...})    the table is open, and no worker runs yet
//	fastpath.Config.Copies = f.Board()        for each worker
//	x := exchange.New(exchange.Config{
//	    Ledger: f.Ledger(), Step: f.Step, Now: the same clock,
//	    Peers: for each other gateway i
//	        session.Owner{Ledger: f.Ledger(), Flows: f, Member: group.Member(i), ...}
//	        session.Member{Copies: f.Copies(i), Read: f.ReadCopy, ...}
//	})
//	f.Attach(x)                               before workers run and before x.Run
//	go x.Run(ctx)
//
// Later other gateways join by Add, here and in the Exchange, and leave by Remove; when the last
// copy of such a gateway has ended, Free frees its number.
//
// All methods are for the goroutine of Exchange.Run (Exchange.Do), except New, Attach, Board and
// Unprotected.
package replication
