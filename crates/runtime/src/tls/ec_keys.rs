//! EC keys in the form that `ring` reads.

use ring::agreement::{ECDH_P256, ECDH_P384, EphemeralPrivateKey};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use secrecy::zeroize::Zeroizing;

use kubesvc_core::kubeconfig::{Curve, EcKey};

/// What stands before the number of a key in PKCS#8, and between that and its public part.
const P256_TEMPLATE: [&[u8]; 2] = [
    &[
        0x30, 0x81, 0x87, 0x02, 0x01, 0x00, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01,
        0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x04, 0x6d, 0x30, 0x6b, 0x02, 0x01, 0x01,
        0x04, 0x20,
    ],
    &[0xa1, 0x44, 0x03, 0x42, 0x00],
];
const P384_TEMPLATE: [&[u8]; 2] = [
    &[
        0x30, 0x81, 0xb6, 0x02, 0x01, 0x00, 0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01,
        0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22, 0x04, 0x81, 0x9e, 0x30, 0x81, 0x9b, 0x02, 0x01, 0x01, 0x04,
        0x30,
    ],
    &[0xa1, 0x64, 0x03, 0x62, 0x00],
];

/// The key, an EC key with its public part, which is optional and without which `ring` reads none. As in Go, that part is
/// computed, whatever the key has.
pub fn completed(key: PrivateKeyDer<'static>) -> PrivateKeyDer<'static> {
    let Some(EcKey { curve, number }) = EcKey::read(&key) else { return key };
    let Some(public) = public_part(curve, &number) else { return key };
    let [before, between] = match curve {
        Curve::P256 => P256_TEMPLATE,
        Curve::P384 => P384_TEMPLATE,
    };
    let whole = [before, number.as_slice(), between, public.as_slice()].concat();
    PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(whole))
}

/// The public part of an EC key: `None` if the number is out of the curve's range.
///
/// `ring` computes one for keys of its own making only, so the number is given to it as what is drawn. The alternative
/// is another implementation of the curves.
#[expect(
    deprecated,
    reason = "ring has no other way to a public key, and its version is fixed in Cargo.lock"
)]
fn public_part(curve: Curve, number: &Zeroizing<Vec<u8>>) -> Option<Vec<u8>> {
    let algorithm = match curve {
        Curve::P256 => &ECDH_P256,
        Curve::P384 => &ECDH_P384,
    };
    let drawn = ring::test::rand::FixedSliceRandom { bytes: number };
    let key = EphemeralPrivateKey::generate(algorithm, &drawn).ok()?;
    Some(key.compute_public_key().ok()?.as_ref().to_vec())
}

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PublicKeyData as _};

    use super::*;

    #[test]
    fn the_public_part_of_an_ec_key_is_computed() {
        for (algorithm, curve) in
            [(&PKCS_ECDSA_P256_SHA256, Curve::P256), (&PKCS_ECDSA_P384_SHA384, Curve::P384)]
        {
            let pair = KeyPair::generate_for(algorithm).expect("a key");
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.serialize_der()));
            let number = EcKey::read(&key).expect("an EC key").number;
            assert_eq!(public_part(curve, &number).as_deref(), Some(pair.der_bytes()));
            let PrivateKeyDer::Pkcs8(whole) = completed(key) else { unreachable!("it is PKCS#8") };
            assert_eq!(whole.secret_pkcs8_der(), pair.serialize_der());
        }
        assert_eq!(public_part(Curve::P256, &Zeroizing::new(vec![0xff; 32])), None);
    }
}
