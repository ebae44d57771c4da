package cli

import "reflect"

// withLists returns v, or a copy, with nil slices and maps replaced by empty ones at any depth: -o
// json prints [] and {} for an empty list or map, never null. The caller must own v.
func withLists(v any) any {
	if v == nil {
		return nil
	}
	p := reflect.New(reflect.TypeOf(v)).Elem()
	p.Set(reflect.ValueOf(v))
	fillLists(p)
	return p.Interface()
}

func fillLists(v reflect.Value) {
	if !v.CanSet() { // unexported fields are not printed
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			fillLists(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fillLists(v.Field(i))
		}
	case reflect.Slice:
		if v.IsNil() && v.Type().Elem().Kind() != reflect.Uint8 { // []byte is printed as text
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fillLists(v.Index(i))
		}
	case reflect.Map:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		for _, k := range v.MapKeys() {
			e := reflect.New(v.Type().Elem()).Elem()
			e.Set(v.MapIndex(k))
			fillLists(e)
			v.SetMapIndex(k, e)
		}
	}
}
