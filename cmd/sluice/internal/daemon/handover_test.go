package daemon

import (
	"reflect"
	"strconv"
	"testing"

	"sluice.dev/sluice/cmd/sluice/internal/handover"
	"sluice.dev/sluice/internal/pinned"
)

// TestHandOverForm: what one process gives is read by one of another version, which must know the
// form by the protocol's number.
func TestHandOverForm(t *testing.T) {
	pinned.Same(t, "testdata/handover.golden", strconv.Itoa(handover.Protocol),
		form("offer", reflect.TypeFor[offer]())+form("state", reflect.TypeFor[state]()))
}

// form has a line for each field, by its name, which is what gob knows it by.
func form(path string, of reflect.Type) (lines string) {
	switch of.Kind() {
	case reflect.Struct:
		for i := range of.NumField() {
			lines += form(path+"."+of.Field(i).Name, of.Field(i).Type)
		}
		return lines
	case reflect.Slice:
		return form(path+"[]", of.Elem())
	}
	return path + " " + of.String() + "\n"
}

// TestNothingIsGivenAtTheEnd: a process that ends gives nothing any more, and one that has given
// all knows it.
func TestNothingIsGivenAtTheEnd(t *testing.T) {
	d := &Daemon{giving: giving{done: make(chan struct{})}}
	if d.endGiving() {
		t.Error("nothing was given")
	}
	if !d.giving.over {
		t.Error("a next process would be given all while this one stops it")
	}
	close(d.giving.done)
	if !d.endGiving() {
		t.Error("all was given, and would be stopped")
	}
}
