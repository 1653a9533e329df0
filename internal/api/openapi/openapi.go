// Package openapi is generated from openapi.yaml: the types of the wire, the interface that the server implements,
// and the glue that reads parameters. Nothing in it is written by hand but this comment; `make generate` makes it anew.
package openapi

//go:generate go tool -modfile=../../../tools/go.mod oapi-codegen -config codegen.yaml ../../../openapi.yaml
