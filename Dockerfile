# The gateway and everything else that the one program does (migrate, simulate, ...). Plain syntax: any builder takes it.
FROM golang:1.26-trixie AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/validator-gw ./cmd/validator-gw \
 && mkdir /out/data

FROM gcr.io/distroless/static-debian13:nonroot
COPY --from=build /out/validator-gw /validator-gw
# The SQLite file, where no DATABASE_URL is given. A volume begins as this folder: empty and the user's own.
COPY --from=build --chown=65532:65532 /out/data /data
ENV VALIDATOR_GW_DATA=/data
VOLUME /data
USER 65532:65532
EXPOSE 8080 9090
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 CMD ["/validator-gw", "healthcheck"]
ENTRYPOINT ["/validator-gw"]
CMD ["serve"]
