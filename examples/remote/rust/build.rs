//! Generates the client from the contract's .proto files. protox compiles them: protoc is not needed.

use std::env;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-env-changed=EVALD_PROTOS");
    let protos = env::var("EVALD_PROTOS").unwrap_or_else(|_| "../../../protos".to_owned());
    println!("cargo:rerun-if-changed={protos}");
    let files = protox::compile(["evald/plugin/v1/registry_service.proto"], [&protos])?;
    tonic_prost_build::configure().build_server(false).include_file("contract.rs").compile_fds(files)?;
    Ok(())
}
