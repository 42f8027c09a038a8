//! Keys and certificates with which nobody can log in, and EC keys without their public part.

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};

use super::*;
use crate::kubeconfig::{Curve, EcKey, may_serve, pem};

const OF_KEY: &str = "users[bot].user.client-key-data";
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const ED448: &[u8] = &[0x2b, 0x65, 0x71];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P521: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x23];

/// An element in DER.
fn der(tag: u8, parts: &[Vec<u8>]) -> Vec<u8> {
    let content = parts.concat();
    let mut written = vec![tag];
    match u8::try_from(content.len()) {
        Ok(short) if short < 0x80 => written.push(short),
        _ => {
            let length = u16::try_from(content.len()).expect("it is short").to_be_bytes();
            written.push(0x82);
            written.extend(length);
        }
    }
    written.extend(content);
    written
}

fn number(bits: usize) -> Vec<u8> {
    let mut bytes = vec![0xff; bits.div_ceil(8)];
    bytes[0] >>= (8 - bits % 8) % 8;
    der(2, &[vec![0], bytes])
}

fn oid(of: &[u8]) -> Vec<u8> {
    der(6, &[of.to_vec()])
}

fn rsa(bits: usize, exponent_bits: usize) -> Vec<u8> {
    let half = number(bits / 2);
    der(0x30, &[number(1), number(bits), number(exponent_bits), number(bits), half.clone(), half])
}

fn sec1(curve: &[u8], key: &[u8]) -> Vec<u8> {
    der(0x30, &[der(2, &[vec![1]]), der(4, &[key.to_vec()]), der(0xa0, &[oid(curve)])])
}

fn pkcs8(algorithm: &[Vec<u8>], inner: Vec<u8>) -> Vec<u8> {
    der(0x30, &[der(2, &[vec![0]]), der(0x30, algorithm), der(4, &[inner])])
}

fn user_with(label: &str, key: &[u8]) -> String {
    let pem = format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(key));
    with_user(&format!(
        "client-certificate-data: {}, client-key-data: {}",
        certificate(),
        STANDARD.encode(pem)
    ))
}

#[test]
fn keys_that_cannot_be_used_are_refused_with_the_reason() {
    let cases = [
        ("RSA PRIVATE KEY", rsa(2304, 17), "RSA key of 2304 bits"),
        ("RSA PRIVATE KEY", rsa(8192, 17), "RSA key of 8192 bits, over 4096"),
        ("PRIVATE KEY", pkcs8(&[oid(RSA), vec![5, 0]], rsa(1024, 17)), "RSA key of 1024 bits"),
        ("RSA PRIVATE KEY", rsa(2048, 2), "public exponent under 65537"),
        ("EC PRIVATE KEY", sec1(P521, &[7; 66]), "such as P-521"),
        ("PRIVATE KEY", pkcs8(&[oid(EC), oid(P521)], sec1(P521, &[7; 66])), "such as P-521"),
        ("PRIVATE KEY", pkcs8(&[oid(ED448)], vec![4, 1, 7]), "another algorithm"),
    ];
    for (label, key, reason) in cases {
        let refusal = refused(&user_with(label, &key));
        assert_eq!(refusal.field(), OF_KEY, "{refusal}");
        assert!(refusal.to_string().contains(reason), "{reason}: {refusal}");
    }
    for bits in [2048, 3072, 4096] {
        vetted(&user_with("RSA PRIVATE KEY", &rsa(bits, 17)));
    }
    vetted(&user_with("EC PRIVATE KEY", &sec1(P256, &[7; 32])));
}

#[test]
fn certificates_on_p521_are_refused_as_client_certificate_and_as_authority() {
    let curve = der(0x30, &[oid(EC), oid(P521)]);
    let key = der(0x30, &[curve, der(3, &[vec![0, 4, 7]])]);
    let (empty, version) = (der(0x30, &[]), der(0xa0, &[der(2, &[vec![2]])]));
    let tbs = [version, number(9), empty.clone(), empty.clone(), empty.clone(), empty, key];
    let written = STANDARD.encode(pem_of_der(&der(0x30, &[der(0x30, &tbs)])));
    let client = refused(&with_user(&format!(
        "client-certificate-data: {written}, client-key-data: {}",
        super::key()
    )));
    assert_eq!(client.field(), "users[bot].user.client-certificate-data");
    let authority = refused(&kubeconfig(&format!("{SERVER}, certificate-authority-data: {written}"), TOKEN));
    assert!(authority.field().ends_with("certificate-authority-data"), "{authority}");
    for refusal in [client, authority] {
        assert!(refusal.to_string().contains("P-521"), "{refusal}");
    }
}

#[test]
fn an_authority_on_p521_takes_nothing_from_the_others() {
    let on = |curve: &[u8]| {
        let key = der(0x30, &[der(0x30, &[oid(EC), oid(curve)]), der(3, &[vec![0, 4, 7]])]);
        let empty = der(0x30, &[]);
        let tbs = [number(9), empty.clone(), empty.clone(), empty.clone(), empty, key];
        pem_of_der(&der(0x30, &[der(0x30, &tbs)]))
    };
    let read = |bundle: String| pem::certificate_authority(bundle.as_bytes(), "field");
    assert!(read(on(P521) + &on(P256)).is_ok() && read(on(P521) + &on(P521)).is_err());
    let client = |chain: String| pem::client_certificate(chain.as_bytes(), "field");
    assert!(client(on(P256) + &on(P521)).is_ok() && client(on(P521) + &on(P256)).is_err());
}

#[test]
fn a_certificate_serves_unless_its_extended_key_usage_is_another_one() {
    const SERVER_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];
    const CLIENT_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02];
    const ANY: &[u8] = &[0x55, 0x1d, 0x25, 0x00];
    let certificate = |extensions: &[Vec<u8>]| {
        let version = der(0xa0, &[der(2, &[vec![2]])]);
        let tbs = [version, number(9), der(0x30, &[]), der(0xa3, &[der(0x30, extensions)])];
        der(0x30, &[der(0x30, &tbs)])
    };
    let key_usage = der(0x30, &[oid(&[0x55, 0x1d, 0x0f]), der(4, &[vec![3, 1, 0]])]);
    let with = |is_critical: bool, usages: &[&[u8]]| {
        let usages: Vec<_> = usages.iter().map(|usage| oid(usage)).collect();
        let critical = if is_critical { der(1, &[vec![0xff]]) } else { Vec::new() };
        let extended = [oid(&[0x55, 0x1d, 0x25]), critical, der(4, &[der(0x30, &usages)])];
        certificate(&[key_usage.clone(), der(0x30, &extended)])
    };
    assert!(may_serve(&certificate(std::slice::from_ref(&key_usage))));
    for is_critical in [true, false] {
        assert!(may_serve(&with(is_critical, &[CLIENT_AUTH, SERVER_AUTH])));
        assert!(may_serve(&with(is_critical, &[ANY])));
        assert!(!may_serve(&with(is_critical, &[CLIENT_AUTH])) && !may_serve(&with(is_critical, &[])));
    }
    let whole = with(true, &[SERVER_AUTH]);
    for length in 0..whole.len() {
        assert!(!may_serve(&whole[..length]), "what is cut serves nobody");
    }
}

fn pem_of_der(der: &[u8]) -> String {
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", STANDARD.encode(der))
}

#[test]
fn an_ec_key_is_read_in_both_forms_without_its_public_part_and_with_or_without_leading_zeros() {
    let sec1_of = |key: &[u8]| PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(sec1(P256, key)));
    let mut padded = [0; 33];
    padded[2..].fill(7);
    let inner = der(0x30, &[der(2, &[vec![1]]), der(4, &[padded[1..].to_vec()])]);
    let in_pkcs8 = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8(&[oid(EC), oid(P256)], inner)));
    for key in [sec1_of(&padded), sec1_of(&padded[1..]), sec1_of(&padded[2..]), in_pkcs8] {
        let read = EcKey::read(&key).expect("an EC key");
        assert_eq!(read.curve, Curve::P256);
        assert_eq!(*read.number, padded[1..]);
    }
    assert!(EcKey::read(&sec1_of(&[7; 33])).is_none(), "it is longer than the curve allows");
}
